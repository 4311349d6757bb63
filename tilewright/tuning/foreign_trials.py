"""Reads the trials of other tuners into the table that a trial store gives: logs of AutoTVM (TVM
0.6 to 0.19), with one JSON record per line, and databases of MetaSchedule (TVM since 0.9), a folder
with two files of JSON lines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import pandas as pd

from tilewright.core.errors import TilewrightError
from tilewright.core.files import (
    Json,
    as_int,
    as_list,
    as_number,
    as_object,
    as_text,
    read_json,
    read_plain,
)
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


_ERRORS = {
    1: ("compile_error", "the template has no such schedule"),
    2: ("compile_error", "it does not compile for the host"),
    3: ("compile_error", "it does not compile for the device"),
    4: ("run_error", "it ended with an error on the device"),
    5: ("wrong_result", "its result is wrong"),
    6: ("timeout", "it took too long to compile"),
    7: ("timeout", "it took too long to run"),
}
"""`tvm.autotvm.MeasureErrorNo`."""


def read_autotvm_log(path: Path) -> ForeignTrials:
    """The trials of a log; a workload is a task with its arguments, a knob that splits has the
    extents of its parts. Raises as `read_lines`."""
    return read_lines(path, _trial)


def _trial(line: bytes) -> ForeignTrial:
    record = as_object(read_json(line))
    if "i" in record:  # version 0.1, until TVM 0.6
        _, task, arguments, _, _, config, *_ = as_list(record["i"])
        entity, result = as_object(config)["e"], record["r"]
    else:
        _, task, arguments, *_ = as_list(record["input"])
        entity, result = as_object(record["config"])["entity"], record["result"]
    knobs = {as_text(name): value for name, _, value in map(as_list, as_list(entity))}
    costs, code, *_ = as_list(result)
    workload = " ".join([as_text(task), *map(_short, as_list(arguments))])
    if code := as_int(code):
        status, reason = _ERRORS.get(code, ("run_error", f"error {code}"))
        return ForeignTrial(workload, knobs, (), status, reason)
    return ForeignTrial(workload, knobs, [as_number(each) for each in as_list(costs)])


def _short(argument: Json) -> str:
    """`1x3x224x224:float32` of a tensor, `1,1` of a list."""
    if not isinstance(argument, list):
        return str(argument)
    if len(argument) == 3 and argument[0] == "TENSOR":
        return "x".join(map(str, as_list(argument[1]))) + f":{argument[2]}"
    return ",".join(map(str, argument))


WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
_SAMPLE = "Sample"

T = TypeVar("T")


def read_metaschedule_database(folder: Path) -> ForeignTrials:
    """The trials of a database. A workload is the structural hash of its module; a knob is a random
    decision of the schedule's trace, in the order of these. Raises as `read_lines`, and
    `FileNotFoundError` where one of the files is missing."""
    lines = [line for line in read_plain(folder / WORKLOADS).split(b"\n") if line.strip()]

    def trial(line: bytes) -> ForeignTrial:
        place, record = as_list(read_json(line))
        trace, seconds, *_ = as_list(record)
        workload, *_ = as_list(read_json(_at(lines, place)))
        return ForeignTrial(
            as_text(workload), _decisions(trace), [as_number(each) for each in as_list(seconds)]
        )

    return read_lines(folder / RECORDS, trial)


def _decisions(trace: Json) -> dict[str, Json]:
    """`PerfectTile 0` and its like by what was drawn: the extents of the parts of a loop, the value
    of a category."""
    instructions, drawn = map(as_list, as_list(trace))
    count: Counter[str] = Counter()
    found: dict[str, Json] = {}
    for place, decision in map(as_list, drawn):
        name, _, attributes, *_ = as_list(_at(instructions, place))
        kind = as_text(name).removeprefix(_SAMPLE)
        if kind == "Categorical":
            decision = _at(as_list(as_list(attributes)[0]), decision)
        found[f"{kind} {count[kind]}"] = decision
        count[kind] += 1
    return found


def _at(values: Sequence[T], place: Json) -> T:
    """Raises `IndexError` also for a negative place, which Python counts from the end."""
    if (index := as_int(place)) < 0:
        raise IndexError(f"there is no place {index}")
    return values[index]
