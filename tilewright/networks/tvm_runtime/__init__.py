"""Runs parts of Relax modules on an accelerator, for TVM scripts of users (docs/guides/tvm.md).

Call `flows.tvm_partition.partition_for_vta`. Importing this package loads no TVM.
"""

from tilewright.networks.tvm_runtime.program import LayerCycles, OffloadError
from tilewright.networks.tvm_runtime.runtime import RUN, register

__all__ = ["RUN", "LayerCycles", "OffloadError", "register"]
