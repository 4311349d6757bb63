"""Latencies as people read them: cycles where a target counts them, else time."""

from __future__ import annotations

import math

from targets.capabilities import Latency


def as_latency(seconds: float | None, cycles: int | None) -> Latency | None:
    """What `summary.json` says, null where nothing is known."""
    if seconds is None and cycles is None:
        return None
    return Latency(math.nan if seconds is None else seconds, -1 if cycles is None else cycles)


def cost(latency: Latency | None) -> float | None:
    """In cycles, or in seconds where none are counted."""
    if latency is None:
        return None
    return float(latency.cycles) if latency.cycles >= 0 else latency.seconds


def latency_text(latency: Latency | None) -> str:
    """`1,371` cycles, `13.7 µs`; empty for what is not known."""
    if latency is None:
        return ""
    if latency.cycles >= 0:
        return f"{latency.cycles:,}"
    milliseconds = latency.seconds * 1e3
    return f"{milliseconds:,.4g} ms" if milliseconds >= 1 else f"{milliseconds * 1e3:.4g} µs"
