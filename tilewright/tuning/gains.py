"""The four latencies by which a run is judged, and the speed-ups from tuning.

The four latencies of a workload or a whole network are `fallback`, `rule`, `tuned` and `bound`.
Speed-ups of `tuned` are computed over `fallback` and over `rule`.
"""

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
"""Names of the four latencies by which a run is judged, in the order of tables and pages."""


@dataclass(frozen=True)
class FourFigures:
    """The four latencies by which a run is judged. A latency is None if it is not known.

    Attributes:
        fallback: latency of the stock compiler's fallback schedule, which it uses for a layer for
            which it publishes no schedule.
        rule: latency of the rule schedule, which Tilewright uses without any trial.
        tuned: latency of the schedule that tuning chose.
        bound: latency that no schedule can beat.
    """

    fallback: Latency | None
    rule: Latency | None
    tuned: Latency | None
    bound: Latency | None

    def gain_over(self, name: Literal["rule", "fallback"]) -> float | None:
        """Return the speed-up of the tuned schedule over the rule or the fallback schedule.

        Args:
            name: "rule" or "fallback".

        Returns:
            Latency of the schedule `name` divided by the tuned latency, in cycles if both latencies
            have cycles, otherwise in seconds. None if one of the latencies is not known.
        """
        return latency_ratio(self.rule if name == RULE else self.fallback, self.tuned)


def four_figures(row: Mapping[str, object]) -> FourFigures:
    """Read the four latencies of a workload or a network from an entry of `summary.json`.

    Args:
        row: entry of a workload, or the total, with keys such as `rule_cycles` and `rule_seconds`.
            A missing key is treated as null.
    """

    def latency(name: str) -> Latency | None:
        cycles, seconds = row.get(f"{name}_cycles"), row.get(f"{name}_seconds")
        return as_latency(
            seconds if isinstance(seconds, float | int) else None,
            cycles if isinstance(cycles, int) else None,
        )

    return FourFigures(*map(latency, FIGURES))


def as_latency(seconds: float | None, cycles: int | None) -> Latency | None:
    """Combine seconds and cycles from `summary.json` into a latency.

    Args:
        seconds: seconds of one call, or None.
        cycles: cycles of one call, or None if the target does not count cycles.

    Returns:
        The latency, or None if both values are unknown.
    """
    if seconds is None and cycles is None:
        return None
    return Latency(math.nan if seconds is None else seconds, -1 if cycles is None else cycles)


def latency_ratio(before: Latency | None, after: Latency | None) -> float | None:
    """Divide one latency by another.

    Args:
        before: the dividend, or None if it is unknown.
        after: the divisor, or None if it is unknown.

    Returns:
        The ratio in cycles if both latencies have cycles, otherwise in seconds. None if one of the
        latencies is not known.
    """
    if before is None or after is None:
        return None
    if before.cycles > 0 and after.cycles > 0:
        return before.cycles / after.cycles
    ratio = before.seconds / after.seconds if after.seconds else math.nan
    return ratio if math.isfinite(ratio) and ratio > 0 else None


def network_figures(counts: Sequence[int], layers: Sequence[FourFigures]) -> FourFigures:
    """Compute the four latencies of one inference from the latencies of the workloads.

    Each latency is the sum over all workloads of the latency of one call times the number of calls.

    Args:
        counts: number of calls of each workload per inference.
        layers: latencies of one call of each workload. If a latency is unknown for one workload, it
            is unknown for the network.
    """

    def total(name: str) -> Latency | None:
        latencies: list[Latency | None] = [getattr(layer, name) for layer in layers]
        known = [latency for latency in latencies if latency is not None]
        if len(known) != len(layers):
            return None
        cycles = inference_total(counts, [max(latency.cycles, 0) for latency in known])
        seconds = inference_total(counts, [latency.seconds for latency in known])
        if seconds is not None and not math.isfinite(seconds):
            seconds = None
        return as_latency(seconds, None if cycles is None else int(cycles))

    return FourFigures(*map(total, FIGURES))


def inference_total(counts: Sequence[int], figures: Sequence[float | None]) -> float | None:
    """Sum a quantity over the workloads of a network, weighted by the number of calls.

    Args:
        counts: number of calls of each workload per inference.
        figures: value of the quantity per call of each workload.

    Returns:
        The sum, or None if a value is unknown (None or 0) or if there are no workloads.
    """
    known = [count * figure for count, figure in zip(counts, figures, strict=True) if figure]
    return sum(known) if known and len(known) == len(figures) else None


Figure = Literal[
    "rule_cycles", "rule_seconds", "fallback_cycles", "fallback_seconds", "tuned_cycles",
    "tuned_seconds", "roofline_cycles", "roofline_seconds", "bound_cycles", "bound_seconds",
]  # fmt: skip


class Macs(TypedDict):
    """Numbers of multiply-accumulates of one inference.

    Attributes:
        total: multiply-accumulates of the whole network.
        offloaded: multiply-accumulates of the layers that run on the target.
    """

    total: int
    offloaded: int


class PublishedTotals(TypedDict):
    """Totals over the workloads for which the stock compiler publishes a schedule.

    The published schedule is the rule schedule of such a workload. Each workload is weighted by its
    number of calls per inference. A total is null if there are no such workloads or if the value of
    one of them is unknown.

    Attributes:
        workloads: number of these workloads.
        rule_cycles: cycles of the published schedules.
        rule_seconds: seconds of the published schedules.
        tuned_cycles: cycles of the tuned schedules.
        tuned_seconds: seconds of the tuned schedules.
    """

    workloads: int
    rule_cycles: int | None
    rule_seconds: float | None
    tuned_cycles: int | None
    tuned_seconds: float | None


class LatencyFigures(TypedDict):
    """Latencies of a workload or network in `summary.json`; null if a latency is unknown.

    - `rule`: the schedule that is used without any trial; `rule_source` is the origin of this
      schedule.
    - `fallback`: the stock compiler's schedule for layers for which it publishes none.
    - `tuned`: the chosen schedule.
    - `roofline`: the lower bound from the peak rate of multiply-accumulates.
    - `bound`: a latency that no schedule beats.
    """

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
    """Totals over the tuned layers of one inference, each workload weighted by its number of calls.

    A total is null if the value of one of the workloads is unknown. `tuned_microjoules` is the
    estimated energy consumption of accelerator and memory. `rule_source` is `mixed` if the rule
    schedules have different origins. `validation` is present if all workloads have validation
    measurements.
    """

    published: PublishedTotals
    tuned_microjoules: NotRequired[float]
    validation: NotRequired[ValidationRow]


def totals(rows: Sequence[WorkloadRow]) -> Total:
    """Compute the totals over the tuned layers of one inference.

    Args:
        rows: entries of the workloads in `summary.json`.
    """
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
    """Return the offloaded fraction of the network's multiply-accumulates; 1 if there are none.

    Args:
        macs: multiply-accumulates of the whole network and of its offloaded layers.
    """
    return macs["offloaded"] / macs["total"] if macs["total"] else 1.0


def _cycles(rows: Sequence[WorkloadRow], figure: Figure) -> int | None:
    result = _sum(rows, figure)
    return None if result is None else int(result)


def _sum(rows: Sequence[WorkloadRow], figure: Figure) -> float | None:
    return inference_total([row["count"] for row in rows], [row[figure] for row in rows])
