"""Fused patterns: post-operations with shapes or tensors of their own, such as a max-pool.

Each pattern has a module of its own and an entry in `PATTERNS`, whose order is the order in which a
workload lists its patterns.
"""

from __future__ import annotations

from tilewright.targets.patterns.average import Average
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.patterns.pattern import Pattern
from tilewright.targets.patterns.shortcut import Shortcut

PATTERNS: tuple[type[Pattern], ...] = (Pool, Shortcut, Average)
