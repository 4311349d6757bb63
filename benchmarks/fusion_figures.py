"""Words the results of decisions about fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NEAR = 1e-3
Row = Mapping[str, Any]


def summary(rows: Sequence[Row]) -> str:
    """A line a pair of cycles against all fused, then of what it took to find them."""
    lines = []
    for row in rows:
        cycles = row["cycles"]
        shown = ", ".join(
            f"{name} {cycles[name] / cycles['all'] - 1:+.2%}"
            for name in ("none", "tvm", "no shortcuts", "no averages", "greedy", "learned")
            if name in cycles
        )
        moved = row["dram_bytes"]["learned"] / row["dram_bytes"]["all"] - 1
        lines.append(
            f"{row['network']:14} {row['target']:9} {row['decisions']:3} decisions; all fused "
            f"{cycles['all']:,} cycles; against that: {shown} ({moved:+.1%} bytes)"
            + (f", bound {row['bound'] / cycles['all'] - 1:+.2%}" if "bound" in row else "")
        )
        told = row["learned"]
        lines.append(
            f"    learned {told['evaluations']:3} evaluations, regret "
            f"{told['cycles'] / row['best'] - 1:.3%}; policy alone "
            f"{told['policy'] / told['cycles'] - 1:+.3%}, before anything was simulated "
            f"{told['policy_blind'] / told['cycles'] - 1:+.3%}; model off by "
            f"{told['model_error']:.2%}; {told['seconds']:.0f} s"
        )
        searches = (f"{name} {_until(each, row['best'])}" for name, each in row["searches"].items())
        learned = _until(row["learned"], row["best"])
        lines.append(
            f"    evaluations to within 0.1 % of the best: learned {learned}, {', '.join(searches)}"
        )
        error = row["searches"]["segments"].get("additive_error")
        if error is not None:
            lines.append(f"    adding up segments is off by {error:+.4%}")
        lines += _true(row)
    ratios = [row["cycles"]["learned"] / row["cycles"]["all"] for row in rows]
    if ratios:
        mean = float(np.exp(np.log(ratios).mean()))
        lines.append(
            f"learned against all fused: {mean - 1:+.2%} on average, best {min(ratios) - 1:+.2%}, "
            f"worst {max(ratios) - 1:+.2%}"
        )
    return "\n".join(lines)


def _true(row: Row) -> list[str]:
    """What the learned search, and everything fused, lack of the best where that is known."""
    each = row["truth"]
    if not each:
        return []
    lacks = [
        f"{one['part']} ({one['decisions']} decisions) {one['regret']:.3%} with "
        f"{one['evaluations']}, all fused {one['regret_all']:.3%}"
        for one in each
    ]
    seconds = f"an evaluation {row['seconds_evaluation']:.3f} s"
    return [f"    regret of the learned search, gone through: {'; '.join(lacks)}; {seconds}"]


def _until(found: Row, best: float) -> str:
    """Evaluations until it was as near as that to the best, or that it never was."""
    for number, cycles in enumerate(found["steps"], 1):
        if cycles <= best * (1 + NEAR):
            return str(number)
    return f"never in {len(found['steps'])} ({found['cycles'] / best - 1:+.2%})"
