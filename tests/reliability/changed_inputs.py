"""Repeats a tuning run with one changed input at a time and lists the stages that ran again.

`python -m tests.reliability.changed_inputs` runs in an empty folder and prints JSON. For each
variant, the JSON has the names of the stages whose results were written, and the number of trials
that were reused.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.services.start_servers import embedded
from tilewright.services.workspace import current_workspace
from tilewright.targets.vta.spec import preset_files
from tilewright.tuning import network, tuning_task
from tilewright.tuning.options import TuningOptions

BASE = TuningOptions(
    model="mine.onnx",
    target="board.json",
    tuner="ml2tuner-published",
    trials=16,
    batch=8,
    out="out",
)


def write_model(weight: float) -> None:
    """Write a model of two dense layers. The weight value changes the file, but no shape."""
    nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]),
             helper.make_node("MatMul", ["h", "b"], ["y"])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "mine",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 16])],
        [numpy_helper.from_array(np.full((64, 32), weight, np.float32), "a"),
         numpy_helper.from_array(np.full((32, 16), weight, np.float32), "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, "mine.onnx")


def write_board(indent: int | None = None, **changes: int) -> None:
    spec = json.loads(preset_files()["vta-pynq"].read_text())
    Path("board.json").write_text(json.dumps(spec | changes, indent=indent))


def tuned(**changes: Any) -> dict[str, Any]:
    from tilewright.flows.forms import fields_of
    from tilewright.flows.tuning_prefect import network_flow

    # forget what a new process would not know either
    for kept in (
        network._network,
        tuning_task._target,
        tuning_task._problem,
        tuning_task._explorer,
    ):
        kept.cache_clear()
    before = _written()
    with contextlib.redirect_stdout(sys.stderr):
        summary = network_flow()(**fields_of(BASE.model_copy(update=changes)))
    new = Counter(path.parent.name for path, _ in _written() - before)
    reused = sum(row["reused_trials"] for row in summary["workloads"])
    return {"computed": dict(sorted(new.items())), "reused": reused}


def _written() -> set[tuple[Path, int]]:
    cache = current_workspace().cache
    return {(path, path.stat().st_mtime_ns) for path in cache.glob("*/*")}


def main() -> dict[str, Any]:
    write_model(1.0)
    write_board()
    with embedded():
        result = {"first": tuned(), "again": tuned()}
        result["elsewhere"] = tuned(out="other")
        write_board(indent=4)
        result["spec written otherwise"] = tuned()
        result["more trials"] = tuned(trials=24)
        result["another seed"] = tuned(seed=1)
        result["another option of the tuner"] = tuned(tuner_options={"alpha": 0.5})
        write_model(2.0)
        result["another model file"] = tuned()
        write_model(1.0)
        write_board(memory_latency_cycles=77)
        result["another spec"] = tuned()
        write_board()
        result["fresh"] = tuned(fresh=True)
    return result


if __name__ == "__main__":
    print(json.dumps(main()))
