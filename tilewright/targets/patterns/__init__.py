"""Post-operations with shapes or tensors of their own, in the order in which a workload has them.

Each pattern has a module of its own and an entry in `PATTERNS`.
"""

from __future__ import annotations

from tilewright.targets.patterns.average import Average
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.patterns.pattern import Pattern
from tilewright.targets.patterns.shortcut import Shortcut

PATTERNS: tuple[type[Pattern], ...] = (Pool, Shortcut, Average)
