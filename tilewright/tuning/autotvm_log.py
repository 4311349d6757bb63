"""Reads logs of AutoTVM, the tuner of TVM 0.6 to 0.19, as trials: a record a line, in JSON."""

from __future__ import annotations

from pathlib import Path

from tilewright.core.files import Json, as_int, as_list, as_number, as_object, as_text, read_json
from tilewright.tuning.foreign_trials import ForeignTrial, ForeignTrials, read_lines

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
