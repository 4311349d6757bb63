"""Says what tuning gained, and over what: the stock compiler's published schedule of a workload,
else its fallback, else a baseline chosen by a rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.targets.capabilities import Latency, is_published

if TYPE_CHECKING:
    from tilewright.tuning.network_totals import Total
    from tilewright.tuning.results import WorkloadRow

PUBLISHED, FALLBACK, RULE = "published baseline", "fallback", "baseline by a rule"
BOTH = "published baseline and fallback"


@dataclass(frozen=True)
class Before:
    """What a user has without tuning: cycles, None where none are counted, and seconds, None where
    nothing is known. `over` says by what: `PUBLISHED`, `FALLBACK`, of several workloads `BOTH`, or
    `RULE`."""

    over: str
    cycles: int | None
    seconds: float | None

    @property
    def is_published(self) -> bool:
        """Whether all of it rests on schedules that the stock compiler publishes."""
        return self.over == PUBLISHED

    @property
    def latency(self) -> Latency | None:
        """The same for a table; None where nothing is known."""
        if self.cycles is None and self.seconds is None:
            return None
        seconds = math.nan if self.seconds is None else self.seconds
        return Latency(seconds, -1 if self.cycles is None else self.cycles)

    def gain(self, row: WorkloadRow | Total) -> float | None:
        """How many times as long as tuned, in cycles where both are counted; None where one of the
        two is not known."""
        if self.cycles and row["tuned_cycles"]:
            return self.cycles / row["tuned_cycles"]
        after = row["tuned_seconds"]
        return self.seconds / after if self.seconds and after else None


def over(source: str | None, fallback: object, validated: bool) -> str:
    """What the gain of a workload is over, by the `source` of its baseline and whether a fallback
    is known. Where measuring does not repeat, so that the final choice is `validated`, the baseline
    alone is measured in turns with the tuned schedule: intervals of the gain are over it."""
    if is_published(source):
        return PUBLISHED
    return FALLBACK if fallback and not validated else RULE


def before(row: WorkloadRow) -> Before:
    """Of one call of a workload."""
    chosen = over(row["baseline_source"], row["fallback_seconds"], "validation" in row)
    if chosen == FALLBACK:
        return Before(chosen, row["fallback_cycles"], row["fallback_seconds"])
    return Before(chosen, row["baseline_cycles"], row["baseline_seconds"])


def before_all(rows: Sequence[WorkloadRow]) -> Before:
    """Of the tuned layers of an inference: each workload times its count; not known where one of
    them is not."""
    each = [before(row) for row in rows]
    kinds = {one.over for one in each}
    cycles = _sum(rows, [one.cycles for one in each])
    return Before(
        kinds.pop() if len(kinds) == 1 else RULE if RULE in kinds else BOTH,
        None if cycles is None else int(cycles),
        _sum(rows, [one.seconds for one in each]),
    )


def _sum(rows: Sequence[WorkloadRow], figures: Sequence[float | None]) -> float | None:
    known = [row["count"] * figure for row, figure in zip(rows, figures, strict=True) if figure]
    return sum(known) if known and len(known) == len(rows) else None
