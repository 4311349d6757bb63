"""Counts the cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Those of its affinity, which `taskset` and containers narrow; all where none is kept."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
