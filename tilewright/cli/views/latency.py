"""Formats latencies for people: cycles where a target counts them, and time."""

from __future__ import annotations

import math

from tilewright.reports.number_format import milliseconds
from tilewright.targets.capabilities import Latency


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


def cycles_text(latency: Latency | None) -> str:
    """`1,371`; empty for what is not known or not counted."""
    return "" if latency is None or latency.cycles < 0 else f"{latency.cycles:,}"


def time_text(latency: Latency | None) -> str:
    """`0.0137` milliseconds; empty for what is not known."""
    return "" if latency is None else milliseconds(latency.seconds)


def latency_text(latency: Latency | None) -> str:
    """`1,371 cycles (0.0137 ms)`, or the time alone; empty for what is not known."""
    if latency is None:
        return ""
    time, cycles = time_text(latency), cycles_text(latency)
    if not cycles:
        return f"{time} ms"
    return f"{cycles} cycles" + (f" ({time} ms)" if time else "")
