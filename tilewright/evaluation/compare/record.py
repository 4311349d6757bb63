"""Reads the leaderboards of a comparison from its output directory, and converts them to JSON.

It also reads the output directories of earlier versions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_object, read_json_file
from tilewright.core.formats import COMPARISON, SWEEP, Format
from tilewright.evaluation.compare.leaderboard import (
    OPTIMUM,
    Leaderboard,
    SeedFigures,
    leaderboard,
    subject_of,
)
from tilewright.evaluation.compare.plan import GOAL

RECORD, NETWORK_RECORD = "comparison.json", "sweep.json"
"""Names of the file with the results of a comparison. `sweep.json` is a copy for programs that read
the format of version 0.2. It will be removed in version 0.4."""
FILES: Mapping[str, Format] = {RECORD: COMPARISON, NETWORK_RECORD: SWEEP}
"""Result files that a finished comparison may have, with their formats; at least one exists."""
_BOARDS = TypeAdapter(tuple[Leaderboard, ...])


class RecordError(TilewrightError):
    """Error for a stored comparison (`comparison.json`) that cannot be read."""


def read_leaderboards(folder: Path) -> tuple[Leaderboard, ...]:
    """Read the leaderboards of a finished comparison.

    Args:
        folder: output directory of the comparison, which an earlier version may have written.

    Returns:
        One leaderboard per subject (a network or a group of workloads) and target.

    Raises:
        RecordError: the folder contains no comparison, or the comparison is damaged or has an
            unsupported version.
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
                return _check_boards(_BOARDS.validate_python(record["leaderboards"]))
            return (_of_runs(_EarlierRecord.model_validate(record)),)
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            raise RecordError(f"cannot read {path}: {error}; repeat the comparison") from None
    raise RecordError(
        f"{folder} contains no comparison; give the output directory of 'tilewright compare'"
    )


def _check_boards(boards: tuple[Leaderboard, ...]) -> tuple[Leaderboard, ...]:
    """Check that leaderboards have tuners and finite numbers, and return them unchanged.

    Args:
        boards: the leaderboards from a file.

    Raises:
        ValueError: a leaderboard has no tuner, or a number is not finite.
    """
    for board in boards:
        if not board.tuners:
            raise ValueError(f"the leaderboard of {board.network} has no tuners")
        for row in board.tuners:
            ends = [end for pair in row.intervals.values() for end in pair]
            figures = [var for var in (*vars(row).values(), *ends) if isinstance(var, float)]
            if not all(map(math.isfinite, figures)):
                raise ValueError(f"a number of {row.tuner} is not finite")
    return boards


class _EarlierRun(BaseModel):
    """A run in a `comparison.json` of an earlier version, which contains no leaderboards."""

    tuner: str
    workload: str
    seed: int
    statuses: list[str]
    best_cycles: list[int | None]
    best_seconds: list[float | None] = []
    wall_seconds: float


class _EarlierRecord(BaseModel):
    """Content of a `comparison.json` of an earlier version."""

    target: str
    trials: int
    optimum: dict[str, int | None]
    optimum_seconds: dict[str, float] = {}
    runs: Annotated[list[_EarlierRun], Field(min_length=1)]

    def regret(self, run: _EarlierRun) -> list[float]:
        """Return the regret of a run after each trial; infinite before the first valid trial.

        The regret is how much slower the best schedule so far is than the optimum.
        """
        cycles = self.optimum[run.workload]
        curve: Sequence[float | None] = run.best_cycles if cycles else run.best_seconds
        least = cycles or self.optimum_seconds[run.workload]
        return [math.inf if best is None else max(best / least - 1, 0.0) for best in curve]


def _of_runs(record: _EarlierRecord) -> Leaderboard:
    """Compute a leaderboard from the runs in a `comparison.json` that an earlier version wrote.

    That file does not tell where a batch ends. Trials are therefore counted up to the trial that
    reached the goal, not up to the end of its batch.
    """
    workloads = tuple(dict.fromkeys(run.workload for run in record.runs))
    pairs = dict.fromkeys((run.tuner, run.seed) for run in record.runs)
    figures = [
        _seed_figures(record, [run for run in record.runs if (run.tuner, run.seed) == pair])
        for pair in pairs
    ]
    return leaderboard(subject_of(workloads), record.target, OPTIMUM, figures)


def _seed_figures(record: _EarlierRecord, runs: Sequence[_EarlierRun]) -> SeedFigures:
    curves = [record.regret(run) for run in runs]
    reached = [
        next((at for at, value in enumerate(curve, 1) if value <= GOAL), None) for curve in curves
    ]
    statuses = [status for run in runs for status in run.statuses]
    regret = math.exp(_mean(math.log1p(curve[-1]) for curve in curves)) - 1
    return SeedFigures(
        runs[0].tuner,
        runs[0].seed,
        round(regret, 4),
        {
            "regret": regret,
            "within_goal": sum(at is not None for at in reached) / len(reached),
            "trials_to_goal": math.exp(_mean(math.log(at or record.trials) for at in reached)),
            "invalid_share": sum(status != "valid" for status in statuses) / max(len(statuses), 1),
            "wall_seconds": _mean(run.wall_seconds for run in runs),
        },
    )


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def to_json(boards: Sequence[Leaderboard]) -> list[Json]:
    """Convert leaderboards to JSON, in the form that `read_leaderboards` reads."""
    return list(_BOARDS.dump_python(tuple(boards), mode="json"))
