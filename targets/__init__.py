"""Hardware: the contract a target keeps, and the targets that keep it.

from targets import make_target

target = make_target("vta-pynq")          # a preset, a file, or what `target_kinds()` names
space = target.space(workload)
lowered = target.lower(workload, space.unravel(np.arange(8)))
measured = target.measure(lowered)        # status, reason, seconds, cycles of each
"""

from targets.base import Lowered, Measurements, Space, Target
from targets.capabilities import capability
from targets.compiled_cache import use_cache_of_these_sources
from targets.registry import TargetKind, make_target, target_kinds

use_cache_of_these_sources()

__all__ = [
    "Lowered", "Measurements", "Space", "Target", "TargetKind", "capability", "make_target",
    "target_kinds",
]  # fmt: skip
