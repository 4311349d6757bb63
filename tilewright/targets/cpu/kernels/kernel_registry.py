"""Lists the kernels there are. A further one is a file beside this and a name below."""

from __future__ import annotations

from tilewright.core.errors import WorkloadError
from tilewright.targets.cpu.kernels import conv2d_bfloat16, matmul_bfloat16
from tilewright.targets.cpu.kernels.batch_matmul import BatchMatmul
from tilewright.targets.cpu.kernels.batch_matmul_int8 import BatchMatmulInt8
from tilewright.targets.cpu.kernels.bfloat16_product import TileBlocks
from tilewright.targets.cpu.kernels.conv2d import Convolution
from tilewright.targets.cpu.kernels.conv2d_bfloat16 import ConvolutionBfloat16
from tilewright.targets.cpu.kernels.conv2d_int8 import ConvolutionInt8
from tilewright.targets.cpu.kernels.dense import Dense
from tilewright.targets.cpu.kernels.dense_int8 import DenseInt8
from tilewright.targets.cpu.kernels.depthwise import Depthwise
from tilewright.targets.cpu.kernels.grouped import Grouped
from tilewright.targets.cpu.kernels.kernel import Kernel
from tilewright.targets.cpu.kernels.matmul_bfloat16 import MatmulBfloat16
from tilewright.targets.cpu.kernels.shared import computes
from tilewright.targets.workload import Workload

KERNELS: tuple[Kernel, ...] = (
    Convolution(), Depthwise(), Grouped(), Dense(), BatchMatmul(), ConvolutionInt8(), DenseInt8(),
    BatchMatmulInt8(), ConvolutionBfloat16(), MatmulBfloat16(),
)  # fmt: skip


def tile_product(workload: Workload) -> tuple[TileBlocks, int]:
    """What tiles compute of a workload of bfloat16, in blocks of two tiles by two, and how many
    numbers are rounded and copied."""
    convolution = workload.operator == "conv2d"
    of = conv2d_bfloat16.product_of if convolution else matmul_bfloat16.product_of
    return of(workload)


def kernel_for(workload: Workload) -> Kernel:
    """The kernel that computes a workload. Raises `WorkloadError` if there is none."""
    for kernel in KERNELS:
        alone = not workload.patterns and all(map(computes, workload.epilogue))
        if alone and kernel.serves(workload):
            return kernel
    raise WorkloadError(
        f"the target cpu has no kernel for {workload} ({workload.dtype}); it computes conv2d (no "
        "pool or average behind it, no shortcut), dense and batch_matmul; name another target for "
        "it"
    )
