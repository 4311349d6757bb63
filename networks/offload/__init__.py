"""Parts of Relax modules on an accelerator: for TVM scripts of others (docs/tvm.md).

`tuning.offload.partition_for_vta` is the way in. Importing this package loads no TVM.
"""

from __future__ import annotations

from networks.offload.program import LayerCycles, OffloadError
from networks.offload.runtime import RUN, register

__all__ = ["RUN", "LayerCycles", "OffloadError", "register"]
