"""Sums up the layers of a run, and says how much of the network and of the comparison with the
stock compiler that covers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

from tilewright.targets.capabilities import is_published
from tilewright.tuning.validation_stats import ValidationRow, inference

if TYPE_CHECKING:
    from tilewright.tuning.results import WorkloadRow

Figure = Literal[
    "baseline_cycles", "baseline_seconds", "fallback_cycles", "fallback_seconds", "tuned_cycles",
    "tuned_seconds", "roofline_cycles", "roofline_seconds", "bound_cycles", "bound_seconds",
]  # fmt: skip


class Macs(TypedDict):
    """Multiply-accumulates of one inference: of the whole network, of what is offloaded of it."""

    total: int
    offloaded: int


class PublishedTotals(TypedDict):
    """The workloads whose baseline the stock compiler publishes, each times its count; null
    where there are none or one of them is."""

    workloads: int
    baseline_cycles: int | None
    baseline_seconds: float | None
    tuned_cycles: int | None
    tuned_seconds: float | None


class LatencyFigures(TypedDict):
    """Latencies without tuning, tuned and at best, and where those without come from; null where
    nothing is known."""

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
    """Of one inference's tuned layers: each workload times its count; null where one of them
    is. `tuned_microjoules` estimates what accelerator and memory spend. `baseline_source` is
    `mixed` where the baselines come from several places. `validation` is there where all workloads
    have it."""

    published: PublishedTotals
    tuned_microjoules: NotRequired[float]
    validation: NotRequired[ValidationRow]


def totals(rows: Sequence[WorkloadRow]) -> Total:
    """What the tuned layers of one inference cost as the baseline, tuned and at best."""
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
    """How much of the network's multiply-accumulates is offloaded: all, where there are none."""
    return macs["offloaded"] / macs["total"] if macs["total"] else 1.0


def _cycles(rows: Sequence[WorkloadRow], figure: Figure) -> int | None:
    found = _sum(rows, figure)
    return None if found is None else int(found)


def _sum(rows: Sequence[WorkloadRow], figure: Figure) -> float | None:
    values = [(row["count"], row[figure]) for row in rows]
    known = [count * value for count, value in values if value]
    return sum(known) if known and len(known) == len(rows) else None
