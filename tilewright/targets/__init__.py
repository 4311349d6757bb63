"""Hardware targets: the contract that every target implements, and the built-in targets.

Example:
    ```python
    from tilewright.targets import make_target

    target = make_target("vta-pynq")     # a preset, a file, or a name from `target_kinds()`
    space = target.space(workload)
    lowered = target.lower(workload, space.unravel(np.arange(8)))
    measured = target.measure(lowered)   # status, reason, seconds and cycles per config
    ```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tilewright.targets.kernel_compilation import use_cache_of_these_sources

if TYPE_CHECKING:
    from tilewright.targets.base import Lowered, Measurements, Space, Target
    from tilewright.targets.capabilities import capability
    from tilewright.targets.registry import TargetKind, make_target, target_kinds

use_cache_of_these_sources()

_MODULES = {
    "tilewright.targets.base": ("Lowered", "Measurements", "Space", "Target"),
    "tilewright.targets.capabilities": ("capability",),
    "tilewright.targets.registry": ("TargetKind", "make_target", "target_kinds"),
}

__all__ = [
    "Lowered", "Measurements", "Space", "Target", "TargetKind", "capability", "make_target",
    "target_kinds",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import the public names on first access.

    A command that only needs the error classes then does not load numpy.
    """
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'targets' has no attribute '{name}'")
