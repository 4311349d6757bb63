"""Fused patterns: post-operations with shapes or tensors of their own, such as a max-pool.

Each pattern class is defined in its own module and is listed in `PATTERNS`. A workload keeps its
patterns in the order of `PATTERNS`.
"""

from __future__ import annotations

from tilewright.targets.patterns.average import Average
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.patterns.pattern import Pattern
from tilewright.targets.patterns.shortcut import Shortcut

PATTERNS: tuple[type[Pattern], ...] = (Pool, Shortcut, Average)
