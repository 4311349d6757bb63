"""Parts of Relax modules on an accelerator: for TVM scripts of others (docs/tvm.md).

`tuning.partition.partition_for_vta` is the way in. Importing this package loads no TVM.
"""

from __future__ import annotations

from networks.packed_calls.program import LayerCycles, OffloadError
from networks.packed_calls.runtime import RUN, register

__all__ = ["RUN", "LayerCycles", "OffloadError", "register"]
