"""Readers for the trials of other tuners, which return the same table as a trial store.

Two formats are supported: logs of AutoTVM (TVM 0.6 to 0.19), which have one JSON record per line,
and databases of MetaSchedule (TVM since 0.9), which are folders with two files of JSON lines.
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
"""Maximum number of unusable lines that are reported individually."""
NO_TIME = 1e9
"""Number of seconds from which a recorded time means that there is no time. TVM's tuners write 1e9
or more if a measurement failed."""


class ForeignTrialsError(TilewrightError):
    """The file does not have the expected format, or contains no usable trial."""


@dataclass(frozen=True)
class ForeignTrial:
    """A trial of another tuner.

    Attributes:
        workload: name of the workload.
        knobs: knob values by name.
        repeats: seconds of each repetition.
        status: outcome: `valid`, or the type of failure, as in `search.trial_rows.TrialRow`.
        reason: reason for a failure, or "".
    """

    workload: str
    knobs: Mapping[str, Json]
    repeats: Sequence[float]
    status: str = "valid"
    reason: str = ""


@dataclass(frozen=True)
class ForeignTrials:
    """All trials in a file or folder.

    Attributes:
        table: trials with the columns `search.trial_store.COLUMNS`. For trials of other tuners,
            knob indices and cycles are unknown, and all trials are in one round.
        problems: messages about lines that could not be used.
    """

    table: pd.DataFrame
    problems: Sequence[str]


def read_lines(path: Path, read: Callable[[bytes], ForeignTrial]) -> ForeignTrials:
    """Read a file with one trial per line. Comments and empty lines are skipped.

    Args:
        path: the file.
        read: function that parses a line. If it raises `ValueError`, `TypeError` or `LookupError`,
            the line is left out and reported.

    Raises:
        ForeignTrialsError: no line can be used.
        UnsafeFile: the path is not a plain file.
        OSError: the file cannot be read.
    """
    trials: list[ForeignTrial] = []
    problems: list[str] = []
    for number, line in enumerate(read_plain(path).split(b"\n"), start=1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            trials.append(read(line))
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            problems.append(f"{path.name}, line {number}: skipped ({str(error)[:80]})")
    if not trials:
        why = f": {problems[0]}" if problems else ", because it is empty"
        raise ForeignTrialsError(f"{path} contains no trial{why}")
    more = [f"{path.name}: {len(problems)} trials skipped"] if len(problems) > TOLD_LINES else []
    return ForeignTrials(_table(trials), [*problems[:TOLD_LINES], *more])


def _table(trials: Sequence[ForeignTrial]) -> pd.DataFrame:
    count: Counter[str] = Counter()
    rows: list[tuple[object, ...]] = []
    for trial in trials:
        valid = trial.status == "valid"
        seconds = fmean(trial.repeats) if valid and trial.repeats else float("nan")
        if valid and not 0 < seconds < NO_TIME:
            trial, valid = (
                ForeignTrial(trial.workload, trial.knobs, (), "run_error", "the log has no time"),
                False,
            )
        rows.append(
            (trial.workload, count[trial.workload], 0, [], json.dumps(trial.knobs), trial.status,
             trial.reason, -1, seconds if valid else float("nan"))
        )  # fmt: skip
        count[trial.workload] += 1
    return pd.DataFrame(rows, columns=list(COLUMNS))


_ERRORS = {
    1: ("compile_error", "the template has no such schedule"),
    2: ("compile_error", "compilation for the host failed"),
    3: ("compile_error", "compilation for the device failed"),
    4: ("run_error", "running on the device failed"),
    5: ("wrong_result", "its result is wrong"),
    6: ("timeout", "compilation timed out"),
    7: ("timeout", "running timed out"),
}
"""Status and reason of a failed trial by the number of its error (`tvm.autotvm.MeasureErrorNo`)."""


def read_autotvm_log(path: Path) -> ForeignTrials:
    """Read a log of AutoTVM.

    A workload is named after the AutoTVM task and its arguments. The value of a split knob is the
    list of the extents of its parts.

    Args:
        path: the log.

    Raises:
        ForeignTrialsError: no line can be used.
        UnsafeFile: the path is not a plain file.
        OSError: the file cannot be read.
    """
    return read_lines(path, _trial)


def _trial(line: bytes) -> ForeignTrial:
    record = as_object(read_json(line))
    if "i" in record:  # version 0.1 of the format, which TVM wrote until version 0.6
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
    return ForeignTrial(workload, knobs, [as_number(cost) for cost in as_list(costs)])


def _short(argument: Json) -> str:
    """Format a task's argument: `1x3x224x224:float32` for a tensor, `1,1` for a list."""
    if not isinstance(argument, list):
        return str(argument)
    if len(argument) == 3 and argument[0] == "TENSOR":
        return "x".join(map(str, as_list(argument[1]))) + f":{argument[2]}"
    return ",".join(map(str, argument))


WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
_SAMPLE = "Sample"

T = TypeVar("T")


def read_metaschedule_database(folder: Path) -> ForeignTrials:
    """Read a database of MetaSchedule.

    A workload is identified by the structural hash of its module. The knobs are the random
    decisions of the schedule's trace, in the order of the trace.

    Args:
        folder: folder with the two files of the database.

    Raises:
        FileNotFoundError: one of the two files is missing.
        ForeignTrialsError: no line can be used.
    """
    lines = [line for line in read_plain(folder / WORKLOADS).split(b"\n") if line.strip()]

    def trial(line: bytes) -> ForeignTrial:
        place, record = as_list(read_json(line))
        trace, seconds, *_ = as_list(record)
        workload, *_ = as_list(read_json(_element_at(lines, place)))
        return ForeignTrial(
            as_text(workload), _decisions(trace), [as_number(second) for second in as_list(seconds)]
        )

    return read_lines(folder / RECORDS, trial)


def _decisions(trace: Json) -> dict[str, Json]:
    """Return the random decisions of a schedule's trace by name, such as `PerfectTile 0`.

    A decision is the list of extents of a loop's parts, or the chosen value of a categorical
    variable. The name is the kind of decision, followed by a running number.

    Args:
        trace: MetaSchedule's trace of the schedule, as JSON.
    """
    instructions, drawn = map(as_list, as_list(trace))
    count: Counter[str] = Counter()
    decisions: dict[str, Json] = {}
    for place, decision in map(as_list, drawn):
        name, _, attributes, *_ = as_list(_element_at(instructions, place))
        kind = as_text(name).removeprefix(_SAMPLE)
        if kind == "Categorical":
            decision = _element_at(as_list(as_list(attributes)[0]), decision)
        decisions[f"{kind} {count[kind]}"] = decision
        count[kind] += 1
    return decisions


def _element_at(values: Sequence[T], place: Json) -> T:
    """Return the element at an index that was read from a file.

    Args:
        values: the sequence.
        place: the index, as JSON.

    Raises:
        IndexError: the index is negative or too large.
    """
    if (index := as_int(place)) < 0:
        raise IndexError(f"index {index} is out of range")
    return values[index]
