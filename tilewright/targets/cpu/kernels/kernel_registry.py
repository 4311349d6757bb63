"""Lists the kernels there are. A further one is a file beside this and a name below."""

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
BY_TILES: tuple[Kernel, ...] = (ConvolutionTiles(), MatmulTiles())


def tile_product(workload: Workload, spec: CpuSpec) -> tuple[TileBlocks, int] | None:
    """What tiles compute of a workload, in blocks of two tiles by two, and how many numbers are
    copied; None if its kernel has no tiles."""
    if kernel_for(workload, spec) not in BY_TILES:
        return None
    convolution = workload.operator == "conv2d"
    of = conv2d_amx.product_of if convolution else matmul_amx.product_of
    return of(workload)


def kernel_for(workload: Workload, spec: CpuSpec) -> Kernel:
    """The kernel that computes a workload. Raises `WorkloadError` if there is none."""
    kernels = KERNELS
    if workload.dtype == "bfloat16":
        kernels = BY_TILES  # the others multiply float32, and would say nothing of it
        if spec.bfloat16 == DOTS_BFLOAT16 and workload.groups > 1:
            kernels = ()  # zeros between groups cost more than what they save
    elif workload.dtype == "int8" and spec.int8_tiles:
        kernels = (*BY_TILES, *KERNELS)
    for kernel in kernels:
        alone = not workload.patterns and all(map(computes, workload.epilogue))
        if alone and kernel.serves(workload):
            return kernel
    raise WorkloadError(
        f"the target cpu has no kernel for {workload} ({workload.dtype}); it computes conv2d (no "
        "pool or average behind it, no shortcut), dense and batch_matmul; name another target for "
        "it"
    )
