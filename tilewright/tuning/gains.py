"""Computes the four latencies by which a run is judged, of a workload and of a whole network:
`fallback`, `rule`, `tuned` and `bound`, and what tuning gained over the first two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NotRequired, TypedDict

from tilewright.targets.capabilities import Latency, is_published
from tilewright.tuning.intervals import ValidationRow, inference

if TYPE_CHECKING:
    from tilewright.tuning.results import WorkloadRow

RULE: Final = "rule"
FALLBACK: Final = "fallback"
FIGURES = (FALLBACK, RULE, "tuned", "bound")
"""Names of the four latencies, in the order in which every place shows them."""


@dataclass(frozen=True)
class FourFigures:
    """The latencies by which a run is judged. A latency is None where it is not known.

    Attributes:
        fallback: the stock compiler's schedule for a layer for which it publishes none.
        rule: the schedule that Tilewright uses without a trial.
        tuned: the schedule that tuning chose.
        bound: what no schedule beats.
    """

    fallback: Latency | None
    rule: Latency | None
    tuned: Latency | None
    bound: Latency | None

    def gain_over(self, name: Literal["rule", "fallback"]) -> float | None:
        """Return how many times as long the schedule `name` takes as the tuned one.

        Returns:
            The ratio of cycles where both are counted, otherwise of seconds; None where one of the
                two latencies is not known.
        """
        return latency_ratio(self.rule if name == RULE else self.fallback, self.tuned)


def four_figures(row: Mapping[str, object]) -> FourFigures:
    """Return the four latencies of a workload, or of all workloads of a network.

    Args:
        row: a workload or the total in `summary.json`, with keys such as `rule_cycles` and
            `rule_seconds`. A missing key counts as null.
    """

    def latency(name: str) -> Latency | None:
        cycles, seconds = row.get(f"{name}_cycles"), row.get(f"{name}_seconds")
        return as_latency(
            seconds if isinstance(seconds, float | int) else None,
            cycles if isinstance(cycles, int) else None,
        )

    return FourFigures(*map(latency, FIGURES))


def as_latency(seconds: float | None, cycles: int | None) -> Latency | None:
    """Return a latency of `summary.json`, None where neither seconds nor cycles are known."""
    if seconds is None and cycles is None:
        return None
    return Latency(math.nan if seconds is None else seconds, -1 if cycles is None else cycles)


def latency_ratio(before: Latency | None, after: Latency | None) -> float | None:
    """Return how many times as long `before` takes as `after`: in cycles where both are counted,
    otherwise in seconds. None where that is not known."""
    if before is None or after is None:
        return None
    if before.cycles > 0 and after.cycles > 0:
        return before.cycles / after.cycles
    ratio = before.seconds / after.seconds if after.seconds else math.nan
    return ratio if math.isfinite(ratio) and ratio > 0 else None


def network_figures(counts: Sequence[int], layers: Sequence[FourFigures]) -> FourFigures:
    """Return the four latencies of an inference: those of each workload times its count. One that
    is not known of a workload is not known of the network."""

    def total(name: str) -> Latency | None:
        each: list[Latency | None] = [getattr(layer, name) for layer in layers]
        known = [latency for latency in each if latency is not None]
        if len(known) != len(layers):
            return None
        cycles = inference_total(counts, [max(latency.cycles, 0) for latency in known])
        seconds = inference_total(counts, [latency.seconds for latency in known])
        if seconds is not None and not math.isfinite(seconds):
            seconds = None
        return as_latency(seconds, None if cycles is None else int(cycles))

    return FourFigures(*map(total, FIGURES))


def inference_total(counts: Sequence[int], figures: Sequence[float | None]) -> float | None:
    """Return the sum of the workloads' figures, each times its calls per inference.

    Returns None if a figure is unknown.
    """
    known = [count * figure for count, figure in zip(counts, figures, strict=True) if figure]
    return sum(known) if known and len(known) == len(figures) else None


Figure = Literal[
    "rule_cycles", "rule_seconds", "fallback_cycles", "fallback_seconds", "tuned_cycles",
    "tuned_seconds", "roofline_cycles", "roofline_seconds", "bound_cycles", "bound_seconds",
]  # fmt: skip


class Macs(TypedDict):
    """Multiply-accumulates of one inference: of the whole network, and of the offloaded part."""

    total: int
    offloaded: int


class PublishedTotals(TypedDict):
    """The workloads whose rule is a schedule that the stock compiler publishes, each times its
    count; null where there are none or one of them is."""

    workloads: int
    rule_cycles: int | None
    rule_seconds: float | None
    tuned_cycles: int | None
    tuned_seconds: float | None


class LatencyFigures(TypedDict):
    """Latencies without tuning, tuned and at best, and where the rule's schedule comes from; null
    where nothing is known."""

    rule_cycles: int | None
    rule_seconds: float | None
    rule_source: str | None
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
    is. `tuned_microjoules` estimates what accelerator and memory spend. `rule_source` is
    `mixed` where the rule's schedules come from several places. `validation` is there where all
    workloads have it."""

    published: PublishedTotals
    tuned_microjoules: NotRequired[float]
    validation: NotRequired[ValidationRow]


def totals(rows: Sequence[WorkloadRow]) -> Total:
    """Return what the tuned layers of one inference take without tuning, tuned and at best."""
    published = [row for row in rows if is_published(row["rule_source"])]
    sources = {row["rule_source"] for row in rows}
    total: Total = {
        "rule_cycles": _cycles(rows, "rule_cycles"),
        "rule_seconds": _sum(rows, "rule_seconds"),
        "fallback_cycles": _cycles(rows, "fallback_cycles"),
        "fallback_seconds": _sum(rows, "fallback_seconds"),
        "tuned_cycles": _cycles(rows, "tuned_cycles"),
        "tuned_seconds": _sum(rows, "tuned_seconds"),
        "roofline_cycles": _cycles(rows, "roofline_cycles"),
        "roofline_seconds": _sum(rows, "roofline_seconds"),
        "bound_cycles": _cycles(rows, "bound_cycles"),
        "bound_seconds": _sum(rows, "bound_seconds"),
        "rule_source": sources.pop() if len(sources) == 1 else "mixed",
        "published": {
            "workloads": len(published),
            "rule_cycles": _cycles(published, "rule_cycles"),
            "rule_seconds": _sum(published, "rule_seconds"),
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
