"""Reads databases of MetaSchedule, TVM's tuner since 0.9, as trials: a folder with two files of a
record a line, in JSON. The modules in them are not decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from tilewright.core.files import Json, as_int, as_list, as_number, as_text, read_json, read_plain
from tilewright.tuning.foreign_trials import ForeignTrial, ForeignTrials, read_lines

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
