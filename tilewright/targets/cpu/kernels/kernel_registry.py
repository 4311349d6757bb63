"""Registry of the kernels of the CPU target.

To add a kernel, write a file in this folder and list the kernel's class here.
"""

from __future__ import annotations

from tilewright.core.errors import WorkloadError
from tilewright.targets.cpu.kernels import conv2d_amx, matmul_amx
from tilewright.targets.cpu.kernels.amx_product import TileBlocks
from tilewright.targets.cpu.kernels.batch_matmul import BatchMatmul, BatchMatmulInt8
from tilewright.targets.cpu.kernels.conv2d import Convolution
from tilewright.targets.cpu.kernels.conv2d_amx import ConvolutionTiles
from tilewright.targets.cpu.kernels.conv2d_int8 import ConvolutionInt8
from tilewright.targets.cpu.kernels.dense import Dense
from tilewright.targets.cpu.kernels.dense_int8 import DenseInt8
from tilewright.targets.cpu.kernels.depthwise import Depthwise
from tilewright.targets.cpu.kernels.epilogue import computes
from tilewright.targets.cpu.kernels.grouped import Grouped
from tilewright.targets.cpu.kernels.kernel import Kernel
from tilewright.targets.cpu.kernels.matmul_amx import MatmulTiles
from tilewright.targets.cpu.spec import DOTS_BFLOAT16, CpuSpec
from tilewright.targets.workload import Workload

KERNELS: tuple[Kernel, ...] = (
    Convolution(), Depthwise(), Grouped(), Dense(), BatchMatmul(), ConvolutionInt8(), DenseInt8(),
    BatchMatmulInt8(),
)  # fmt: skip
"""Kernels without tile instructions, in the order in which they are tried."""
BY_TILES: tuple[Kernel, ...] = (ConvolutionTiles(), MatmulTiles())
"""Kernels that use tile instructions or bfloat16 dot products."""


def tile_product(workload: Workload, spec: CpuSpec) -> tuple[TileBlocks, int] | None:
    """Return the matrix product that a kernel with tile instructions computes for a workload.

    Args:
        workload: the workload.
        spec: the processor.

    Returns:
        The product, cut into blocks of 2 × 2 tiles, and the number of data values that are copied
        before the product. None if the workload's kernel does not use tiles.
    """
    if kernel_for(workload, spec) not in BY_TILES:
        return None
    convolution = workload.operator == "conv2d"
    of = conv2d_amx.product_of if convolution else matmul_amx.product_of
    return of(workload)


def kernel_for(workload: Workload, spec: CpuSpec) -> Kernel:
    """Return the kernel that computes a workload on a processor.

    Args:
        workload: the workload.
        spec: the processor.

    Raises:
        WorkloadError: no kernel computes the workload.
    """
    kernels = KERNELS
    if workload.dtype == "bfloat16":
        kernels = BY_TILES  # the others would silently multiply float32
        if spec.bfloat16 == DOTS_BFLOAT16 and workload.groups > 1:
            kernels = ()  # multiplying zeros between groups costs more than dot products save
    elif workload.dtype == "int8" and spec.int8_tiles:
        kernels = (*BY_TILES, *KERNELS)
    for kernel in kernels:
        alone = not workload.patterns and all(map(computes, workload.epilogue))
        if alone and kernel.serves(workload):
            return kernel
    raise WorkloadError(
        f"the target cpu has no kernel for {workload} ({workload.dtype}); it supports conv2d "
        "(without a fused pool, average or shortcut), dense and batch_matmul; choose "
        "another target for it"
    )
