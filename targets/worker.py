"""The child's side of `targets.isolated`: builds a target from its recipe and answers calls.

Run as `python -m targets.worker … FACTORY ARGUMENTS`, with a factory `package.module:name` and its
keyword arguments as JSON.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targets.base import Lowered, Space, Target
from targets.rpc_process import Arrays, Header, arguments, serve
from targets.workload import EpilogueOp, Workload


class Worker:
    """Answers one call after another with a target of its own."""

    def __init__(self, factory: str, keywords: dict[str, Any]) -> None:
        module, _, name = factory.partition(":")
        self.target: Target = getattr(importlib.import_module(module), name)(**keywords)
        self._lowered: Lowered | None = None

    def answer(self, header: Header, arrays: dict[str, NDArray[Any]]) -> tuple[Header, Arrays]:
        call = header["call"]
        if call == "describe":
            return {
                "name": self.target.name,
                "fingerprint": self.target.fingerprint,
                "hardware": self.target.hardware_features(),
                "estimates": hasattr(self.target, "estimate"),
            }, {}
        workload = read_workload(header["workload"])
        if call == "space":
            return write_space(self.target.space(workload)), {}
        configs = np.asarray(arrays["configs"], dtype=np.int32)
        if call == "estimate":
            table, names = self.target.estimate(workload, configs)  # type: ignore[attr-defined]
            return {"names": list(names)}, {"table": table}
        if call == "lower":
            lowered = self._lowered = self.target.lower(workload, configs)
            return {"names": list(lowered.hidden_names)}, {
                "failures": lowered.failures,
                "reasons": lowered.reasons,
                "hidden": lowered.hidden,
            }
        measured = self.target.measure(self._programs(workload, configs))
        counters = {f"counter_{name}": values for name, values in measured.counters.items()}
        return {}, {
            "status": measured.status,
            "reason": measured.reason,
            "cycles": measured.cycles,
            "seconds": measured.seconds,
        } | counters

    def _programs(self, workload: Workload, configs: NDArray[np.int32]) -> Lowered:
        """What was lowered last, if these rows are among it; a fresh process lowers them again."""
        last = self._lowered
        if last is not None and last.workload == workload:
            place = {row.tobytes(): i for i, row in enumerate(last.configs)}
            rows = [place.get(row.tobytes(), -1) for row in configs]
            if min(rows, default=-1) >= 0:
                return last.rows(np.array(rows))
        return self.target.lower(workload, configs)


def write_workload(workload: Workload) -> dict[str, Any]:
    return asdict(workload)


def read_workload(values: dict[str, Any]) -> Workload:
    epilogue = tuple(EpilogueOp(**step) for step in values["epilogue"])
    return Workload(**(values | {"epilogue": epilogue}))


def write_space(space: Space) -> Header:
    return {
        "space": space.name,
        "knobs": [[knob.name, [int(value) for value in knob.values]] for knob in space.knobs],
        "listed": None if space.listed is None else [int(flat) for flat in space.listed],
    }


if __name__ == "__main__":
    factory, keywords = arguments()
    serve(Worker(factory, json.loads(keywords)).answer)
