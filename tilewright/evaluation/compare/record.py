"""Reads the leaderboards of a comparison from its folder, also those of earlier versions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_object, read_json_file
from tilewright.core.formats import COMPARISON, SWEEP, Format
from tilewright.evaluation.compare.leaderboard import OPTIMUM, Leaderboard, TunerMedians
from tilewright.evaluation.compare.plan import GOAL

FILES: Mapping[str, Format] = {"comparison.json": COMPARISON, "sweep.json": SWEEP}
"""Files of which one lies in the folder of a comparison."""
_BOARDS = TypeAdapter(tuple[Leaderboard, ...])


class RecordError(TilewrightError):
    """A comparison that cannot be read."""


def read_leaderboards(folder: Path) -> tuple[Leaderboard, ...]:
    """Return the leaderboards of a comparison, one per subject and target.

    Args:
        folder: the folder that a comparison, or a sweep of an earlier version, wrote.

    Raises:
        RecordError: the folder holds no comparison, or one of another version.
        OSError: the file cannot be read.
    """
    for name, form in FILES.items():
        path = folder / name
        if not path.is_file():
            continue
        try:
            record = as_object(read_json_file(path))
            if said := form.refusal(path, form.version_in(record)):
                raise RecordError(said)
            if "leaderboards" in record:
                return _BOARDS.validate_python(record["leaderboards"])
            return (_of_runs(_EarlierRecord.model_validate(record)),)
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            raise RecordError(f"cannot read {path}: {error}; repeat the comparison") from None
    raise RecordError(f"{folder} holds no comparison; name the --out folder of one")


class _EarlierRun(BaseModel):
    """A run in a `comparison.json` that has no leaderboards."""

    tuner: str
    workload: str
    seed: int
    statuses: list[str]
    best_cycles: list[int | None]
    best_seconds: list[float | None] = []
    wall_seconds: float


class _EarlierRecord(BaseModel):
    target: str
    trials: int
    optimum: dict[str, int | None]
    optimum_seconds: dict[str, float] = {}
    runs: Annotated[list[_EarlierRun], Field(min_length=1)]

    def regret(self, run: _EarlierRun) -> list[float]:
        """Return the distance from the optimum after each trial."""
        cycles = self.optimum[run.workload]
        curve: Sequence[float | None] = run.best_cycles if cycles else run.best_seconds
        least = cycles or self.optimum_seconds[run.workload]
        return [math.inf if best is None else max(best / least - 1, 0.0) for best in curve]


def _of_runs(record: _EarlierRecord) -> Leaderboard:
    """Return the leaderboard of runs, as `evaluation.compare.leaderboard` defines its figures;
    trials to the goal count to the trial that reached it, because batches are not recorded."""
    count = len({run.workload for run in record.runs})
    subject = record.runs[0].workload if count == 1 else f"{count} workloads"
    names = dict.fromkeys(run.tuner for run in record.runs)
    rows = [_medians(record, [run for run in record.runs if run.tuner == name]) for name in names]
    ranked = sorted(rows, key=lambda row: (_known(row.regret), _known(row.trials_to_goal)))
    best = ranked[0]
    winners = tuple(
        row.tuner
        for row in ranked
        if best.regret is not None
        and (row.regret, row.trials_to_goal) == (best.regret, best.trials_to_goal)
    )
    return Leaderboard(subject, record.target, OPTIMUM, tuple(ranked), winners)


def _medians(record: _EarlierRecord, runs: Sequence[_EarlierRun]) -> TunerMedians:
    seeds = dict.fromkeys(run.seed for run in runs)
    curves = {(run.seed, run.workload): record.regret(run) for run in runs}
    final = [
        math.exp(_mean(math.log1p(curve[-1]) for key, curve in curves.items() if key[0] == seed))
        - 1
        for seed in seeds
    ]
    reached = {
        key: next((at for at, value in enumerate(curve, 1) if value <= GOAL), None)
        for key, curve in curves.items()
    }
    spent = {key: math.log(at or record.trials) for key, at in reached.items()}
    to_goal = [
        math.exp(_mean(cost for key, cost in spent.items() if key[0] == seed)) for seed in seeds
    ]
    statuses = [status for run in runs for status in run.statuses]
    regret = median(final)
    return TunerMedians(
        tuner=runs[0].tuner, seeds=len(seeds), gain=None, tuned_cycles=None, tuned_seconds=None,
        fastest_on=0, regret=regret if math.isfinite(regret) else None,
        within_goal=sum(at is not None for at in reached.values()) / len(reached),
        trials_to_goal=median(to_goal),
        invalid_share=sum(each != "valid" for each in statuses) / max(len(statuses), 1),
        wall_seconds=median(run.wall_seconds for run in runs),
    )  # fmt: skip


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _known(value: float | None) -> float:
    return math.inf if value is None else value


def to_json(boards: Sequence[Leaderboard]) -> list[Json]:
    """Return leaderboards as JSON."""
    return list(_BOARDS.dump_python(tuple(boards), mode="json"))
