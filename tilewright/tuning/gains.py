"""Gains from tuning, of a workload and of a whole network.

A gain refers to the stock compiler's published schedule, or else to its fallback schedule, or else
to a baseline chosen by a rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

from tilewright.targets.capabilities import Latency, is_published
from tilewright.tuning.intervals import ValidationRow, inference

if TYPE_CHECKING:
    from tilewright.tuning.results import WorkloadRow


class TunedLatency(TypedDict):
    """Latency of the tuned schedules; None where it is unknown."""

    tuned_cycles: int | None
    tuned_seconds: float | None


class GainRow(TunedLatency):
    """Fields of a workload in `summary.json` that determine its gain."""

    count: int
    baseline_cycles: int | None
    baseline_seconds: float | None
    baseline_source: str | None
    fallback_cycles: int | None
    fallback_seconds: float | None
    validation: NotRequired[ValidationRow]


PUBLISHED, FALLBACK, RULE = "published baseline", "fallback", "baseline by a rule"
BOTH = "published baseline and fallback"


@dataclass(frozen=True)
class Before:
    """Latency without tuning.

    Attributes:
        over: origin of the latency: `PUBLISHED`, `FALLBACK`, `RULE`, or `BOTH` for several
            workloads with published and fallback schedules.
        cycles: cycles, or None if none are counted.
        seconds: seconds, or None if they are unknown.
    """

    over: str
    cycles: int | None
    seconds: float | None

    @property
    def is_published(self) -> bool:
        """Whether the latency is only based on schedules that the stock compiler publishes."""
        return self.over == PUBLISHED

    @property
    def latency(self) -> Latency | None:
        """The latency as one object; None if it is unknown."""
        if self.cycles is None and self.seconds is None:
            return None
        seconds = math.nan if self.seconds is None else self.seconds
        return Latency(seconds, -1 if self.cycles is None else self.cycles)

    def gain(self, row: TunedLatency) -> float | None:
        """Return the ratio to the tuned latency, in cycles if both are counted; None if one is
        unknown."""
        if self.cycles and row["tuned_cycles"]:
            return self.cycles / row["tuned_cycles"]
        after = row["tuned_seconds"]
        return self.seconds / after if self.seconds and after else None


def over(source: str | None, fallback: object, validated: bool) -> str:
    """Return what the gain of a workload refers to.

    If measurements vary, only the baseline is measured in turns with the tuned schedule, so
    intervals of the gain refer to the baseline.

    Args:
        source: source of the baseline.
        fallback: fallback latency, if it is known.
        validated: whether the final choice was validated, because measurements vary.
    """
    if is_published(source):
        return PUBLISHED
    return FALLBACK if fallback and not validated else RULE


def before(row: GainRow) -> Before:
    """Return the latency of one call of a workload without tuning."""
    chosen = over(row["baseline_source"], row["fallback_seconds"], "validation" in row)
    if chosen == FALLBACK:
        return Before(chosen, row["fallback_cycles"], row["fallback_seconds"])
    return Before(chosen, row["baseline_cycles"], row["baseline_seconds"])


def before_all(rows: Sequence[GainRow]) -> Before:
    """Return the latency of the tuned layers of an inference without tuning.

    It is the sum over workloads, each times its count, and unknown if one of them is unknown.
    """
    each = [before(row) for row in rows]
    kinds = {one.over for one in each}
    counts = [row["count"] for row in rows]
    cycles = inference_total(counts, [one.cycles for one in each])
    return Before(
        kinds.pop() if len(kinds) == 1 else RULE if RULE in kinds else BOTH,
        None if cycles is None else int(cycles),
        inference_total(counts, [one.seconds for one in each]),
    )


def inference_total(counts: Sequence[int], figures: Sequence[float | None]) -> float | None:
    """Return the sum of the workloads' figures, each times its calls per inference.

    Returns None if a figure is unknown.
    """
    known = [count * figure for count, figure in zip(counts, figures, strict=True) if figure]
    return sum(known) if known and len(known) == len(figures) else None


Figure = Literal[
    "baseline_cycles", "baseline_seconds", "fallback_cycles", "fallback_seconds", "tuned_cycles",
    "tuned_seconds", "roofline_cycles", "roofline_seconds", "bound_cycles", "bound_seconds",
]  # fmt: skip


class Macs(TypedDict):
    """Multiply-accumulates of one inference: of the whole network, and of the offloaded part."""

    total: int
    offloaded: int


class PublishedTotals(TypedDict):
    """Totals of the workloads with a published baseline, each times its count; None where
    unknown."""

    workloads: int
    baseline_cycles: int | None
    baseline_seconds: float | None
    tuned_cycles: int | None
    tuned_seconds: float | None


class LatencyFigures(TypedDict):
    """Latencies without tuning, after tuning and at best; None where unknown.

    `baseline_source` says where the baseline comes from.
    """

    baseline_cycles: int | None
    baseline_seconds: float | None
    baseline_source: str | None
    fallback_cycles: int | None
    fallback_seconds: float | None
    tuned_cycles: int | None
    tuned_seconds: float | None
    roofline_cycles: int | None
    roofline_seconds: float | None
    bound_cycles: int | None
    bound_seconds: float | None


class Total(LatencyFigures):
    """Totals of the tuned layers of one inference: each workload times its count.

    Unknown totals are None. `tuned_microjoules` is the estimated energy of accelerator and memory.
    `baseline_source` is `mixed` if the baselines have several sources. `validation` is present if
    all workloads have it.
    """

    published: PublishedTotals
    tuned_microjoules: NotRequired[float]
    validation: NotRequired[ValidationRow]


def totals(rows: Sequence[WorkloadRow]) -> Total:
    """Return the total latencies of the tuned layers of one inference."""
    published = [row for row in rows if is_published(row["baseline_source"])]
    sources = {row["baseline_source"] for row in rows}
    total: Total = {
        "baseline_cycles": _cycles(rows, "baseline_cycles"),
        "baseline_seconds": _sum(rows, "baseline_seconds"),
        "fallback_cycles": _cycles(rows, "fallback_cycles"),
        "fallback_seconds": _sum(rows, "fallback_seconds"),
        "tuned_cycles": _cycles(rows, "tuned_cycles"),
        "tuned_seconds": _sum(rows, "tuned_seconds"),
        "roofline_cycles": _cycles(rows, "roofline_cycles"),
        "roofline_seconds": _sum(rows, "roofline_seconds"),
        "bound_cycles": _cycles(rows, "bound_cycles"),
        "bound_seconds": _sum(rows, "bound_seconds"),
        "baseline_source": sources.pop() if len(sources) == 1 else "mixed",
        "published": {
            "workloads": len(published),
            "baseline_cycles": _cycles(published, "baseline_cycles"),
            "baseline_seconds": _sum(published, "baseline_seconds"),
            "tuned_cycles": _cycles(published, "tuned_cycles"),
            "tuned_seconds": _sum(published, "tuned_seconds"),
        },
    }
    spent = [row["count"] * row["tuned_microjoules"] for row in rows if "tuned_microjoules" in row]
    if spent and len(spent) == len(rows):
        total["tuned_microjoules"] = round(sum(spent), 6)
    validated = [row["validation"] for row in rows if "validation" in row]
    if validated and len(validated) == len(rows):
        total["validation"] = inference([row["count"] for row in rows], validated)
    return total


def share_of(macs: Macs) -> float:
    """Return the offloaded fraction of the network's multiply-accumulates; 1 if there are none."""
    return macs["offloaded"] / macs["total"] if macs["total"] else 1.0


def _cycles(rows: Sequence[WorkloadRow], figure: Figure) -> int | None:
    found = _sum(rows, figure)
    return None if found is None else int(found)


def _sum(rows: Sequence[WorkloadRow], figure: Figure) -> float | None:
    return inference_total([row["count"] for row in rows], [row[figure] for row in rows])
