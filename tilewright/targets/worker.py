"""Child process of `targets.subprocess_target`: builds a target and answers calls on it.

Run it as `python -m tilewright.targets.worker … FACTORY ARGUMENTS`. The factory is a function
`package.module:name` that builds the target, and the arguments are its keyword arguments as JSON.
Each call that needs compiled programs contains them as plain arrays.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Header, arguments, serve
from tilewright.core.errors import WorkloadError
from tilewright.core.files import Json, as_int, as_list, as_object, as_text, read_json
from tilewright.targets.base import Knob, Lowered, Measurements, Programs, Ragged, Space, Target
from tilewright.targets.capabilities import Estimates, capability
from tilewright.targets.features import Features, write_columns
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload

SMALL = Workload("dense", 1, 16, 1, 1, 16)
_PROGRAM, _VALUES, _OFFSETS = "program ", " values", " offsets"


def call_factory(factory: str, keywords: Mapping[str, Json]) -> Target:
    """Import a factory function, call it and return the target that it builds.

    Args:
        factory: the function as `package.module:name`.
        keywords: keyword arguments of the function.
    """
    module, _, name = factory.partition(":")
    target: Target = getattr(importlib.import_module(module), name)(**keywords)
    return target


class Worker:
    """Server in a child process, which answers calls of the parent process on a target, in order.

    Args:
        target: the target.
    """

    def __init__(self, target: Target) -> None:
        self.target = target

    def answer(self, header: Header, arrays: dict[str, NDArray[Any]]) -> tuple[Header, Arrays]:
        """Answer one call.

        Args:
            header: JSON with the name of the call under `call`: "describe", "space", "estimate",
                "lower" or "measure". All calls except "describe" contain a workload.
            arrays: arrays of the call; `configs` has shape (n, knobs).

        Returns:
            A JSON header and arrays to send back.
        """
        call = header["call"]
        estimates = capability(self.target, Estimates)
        if call == "describe":
            return {
                "name": self.target.name,
                "fingerprint": self.target.fingerprint,
                "deterministic": self.target.deterministic,
                "hardware": self.target.hardware_features(),
                "estimates": estimates is not None,
            }, {}
        workload = Workload.from_json(as_object(header["workload"]))
        if call == "space":
            return write_space(self.target.space(workload)), {}
        configs = np.asarray(arrays["configs"], dtype=np.int32)
        if call == "estimate":
            assert estimates is not None
            table = estimates.estimate(workload, configs)
            return {"columns": write_columns(table.columns)}, {"table": table.matrix}
        if call == "lower":
            lowered = self.target.lower(workload, configs)
            reply, results = lowered_reply(lowered)
            return reply, results | write_programs(lowered.programs)
        return self._measured(workload, configs, arrays)

    def _measured(
        self, workload: Workload, configs: NDArray[np.int32], arrays: dict[str, NDArray[Any]]
    ) -> tuple[Header, Arrays]:
        """Measure compiled programs and return the measurements as a reply to the parent process.

        Args:
            workload: the workload of the programs.
            configs: knob indices, shape (n, knobs). All of these configs have compiled.
            arrays: arrays of the call by name, which hold the programs.
        """
        n = len(configs)
        texts = np.full(n, "", dtype=object)
        programs = read_programs(arrays)
        lowered = Lowered(workload, configs, texts, texts, Features.empty(n), programs)
        return {}, measured_reply(self.target.measure(lowered))


def make_warm(text: str, space: str = "") -> Target:
    """Build a target and run a small workload on it, so that its kernels are compiled in advance.

    Args:
        text: name of the target, as for `make_target`.
        space: name of the schedule space; empty for the target's default space.

    Raises:
        TilewrightError: as for `make_target`.
    """
    return warmed_up(make_target(text, space))


def warmed_up(target: Target) -> Target:
    """Run a small workload on a target, so that its kernels are compiled.

    Compiling the kernels of a simulator would otherwise count towards the time limit of a call.

    Returns:
        The same target.
    """
    with suppress(WorkloadError):  # some targets have no schedule for this workload
        configs = np.zeros((1, len(target.space(SMALL).knobs)), np.int32)
        target.measure(target.lower(SMALL, configs))
    return target


# -- messages ----------------------------------------------------------------------------------


def lowered_reply(lowered: Lowered) -> tuple[Header, dict[str, NDArray[Any]]]:
    """Convert a lowered batch, without its programs, to the parts of a reply.

    Returns:
        A JSON header with the descriptions of the hidden features, and arrays of shape (configs,
        …).
    """
    return {"columns": write_columns(lowered.hidden.columns)}, {
        "failures": lowered.failures,
        "reasons": lowered.reasons,
        "hidden": lowered.hidden.matrix,
    }


def measured_reply(measured: Measurements) -> dict[str, NDArray[Any]]:
    """Convert measurements to the arrays of a reply.

    Returns:
        Arrays of shape (configs,). The repetitions of each config, whose number varies, are stored
        in the format of `write_programs`.
    """
    reply = {
        "status": measured.status,
        "reason": measured.reason,
        "cycles": measured.cycles,
        "seconds": measured.seconds,
    }
    reply |= {f"counter_{name}": values for name, values in measured.counters.items()}
    if measured.repeats is not None:
        reply |= write_programs({"repeats": measured.repeats})
    return reply


def write_programs(programs: Programs) -> dict[str, NDArray[Any]]:
    """Convert programs to plain arrays.

    Returns:
        Two arrays per part: its values, shape (total, …), and its offsets, shape (rows + 1,).
    """
    return {
        f"{_PROGRAM}{name}{end}": array
        for name, part in programs.items()
        for end, array in ((_VALUES, part.values), (_OFFSETS, part.offsets))
    }


def read_programs(arrays: Arrays) -> dict[str, Ragged]:
    """Read the programs that `write_programs` wrote, and check their shapes.

    Raises:
        KeyError: an array is missing.
        ValueError: the offsets do not match the values.
    """
    programs = {}
    for key in arrays:
        if key.startswith(_PROGRAM) and key.endswith(_VALUES):
            name = key.removeprefix(_PROGRAM).removesuffix(_VALUES)
            values, offsets = arrays[key], arrays[f"{_PROGRAM}{name}{_OFFSETS}"]
            sound = (
                offsets.ndim == 1 and len(offsets) and offsets.dtype.kind in "iu"
                and offsets[0] == 0 and offsets[-1] == len(values) and (np.diff(offsets) >= 0).all()
            )  # fmt: skip
            if not sound:
                raise ValueError(f"the rows of '{name}' are not those of its values")
            programs[name] = Ragged(values, offsets.astype(np.int64))
    return programs


def write_space(space: Space) -> Header:
    """Convert a schedule space to JSON."""
    return {
        "space": space.name,
        "knobs": [[knob.name, [int(value) for value in knob.values]] for knob in space.knobs],
        "listed": None if space.listed is None else [int(flat) for flat in space.listed],
    }


def read_space(values: Mapping[str, Json]) -> Space:
    """Read the schedule space that `write_space` wrote.

    Raises:
        ValueError: the JSON is invalid.
    """
    pairs = [as_list(pair) for pair in as_list(values["knobs"])]
    knobs = tuple(Knob(as_text(name), _ints(numbers)) for name, numbers in pairs)
    listed = values["listed"]
    return Space(as_text(values["space"]), knobs, None if listed is None else _ints(listed))


def _ints(value: Json) -> tuple[int, ...]:
    return tuple(map(as_int, as_list(value)))


if __name__ == "__main__":
    factory, keywords = arguments()
    serve(Worker(call_factory(factory, as_object(read_json(keywords)))).answer)
