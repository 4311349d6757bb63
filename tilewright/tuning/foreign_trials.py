"""Defines what the trials of other tuners are read as: the table that a trial store gives."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pandas as pd

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, read_plain
from tilewright.search.trial_store import COLUMNS

TOLD_LINES = 5
"""Number of unusable lines that are listed one by one."""
NO_TIME = 1e9
"""Seconds from which on a time stands for none: both tuners of TVM write 10 to the 9th or more."""


class ForeignTrialsError(TilewrightError):
    """A file that is not of the kind it is read as."""


@dataclass(frozen=True)
class ForeignTrial:
    """A trial that another tuner made: its knobs by name, the seconds of every repetition, and why
    there are none where it is not valid."""

    workload: str
    knobs: Mapping[str, Json]
    repeats: Sequence[float]
    status: str = "valid"
    reason: str = ""


@dataclass(frozen=True)
class ForeignTrials:
    """Trials in the columns of `search.trial_store.COLUMNS`: without indices of knobs and cycles,
    all in one round. `problems` tells of the lines that could not be used."""

    table: pd.DataFrame
    problems: Sequence[str]


def read_lines(path: Path, read: Callable[[bytes], ForeignTrial]) -> ForeignTrials:
    """A file of a trial a line; those that `read` raises `ValueError`, `TypeError`, `KeyError` or
    `IndexError` for are left out, and so are comments. Raises `ForeignTrialsError` where no line
    can be used, `UnsafeFile` and `OSError`."""
    found: list[ForeignTrial] = []
    problems: list[str] = []
    for number, line in enumerate(read_plain(path).split(b"\n"), start=1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            found.append(read(line))
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            problems.append(f"{path.name}, line {number}: left out ({str(error)[:80]})")
    if not found:
        why = f": {problems[0]}" if problems else ", it is empty"
        raise ForeignTrialsError(f"{path} holds no trial{why}")
    more = [f"{path.name}: {len(problems)} lines left out"] if len(problems) > TOLD_LINES else []
    return ForeignTrials(_table(found), [*problems[:TOLD_LINES], *more])


def _table(trials: Sequence[ForeignTrial]) -> pd.DataFrame:
    count: Counter[str] = Counter()
    rows: list[tuple[object, ...]] = []
    for each in trials:
        valid = each.status == "valid"
        seconds = fmean(each.repeats) if valid and each.repeats else float("nan")
        if valid and not 0 < seconds < NO_TIME:
            each, valid = ForeignTrial(each.workload, each.knobs, (), "run_error", "no time"), False
        rows.append(
            (each.workload, count[each.workload], 0, [], json.dumps(each.knobs), each.status,
             each.reason, -1, seconds if valid else float("nan"))
        )  # fmt: skip
        count[each.workload] += 1
    return pd.DataFrame(rows, columns=list(COLUMNS))
