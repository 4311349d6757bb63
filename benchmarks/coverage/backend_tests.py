"""Builds the models of the ONNX backend node tests, and compares them with onnxruntime.

    python -m benchmarks.coverage.backend_tests --json built/node-tests.json          # half an hour
    python -m benchmarks.coverage.backend_tests --json built/node-tests.json --only resize,pad
    python -m benchmarks.coverage.backend_tests --json built/node-tests.json --write

Each test is a small model with inputs. It is built for the target `cpu` and run on these inputs.
The result is right if element types and shapes equal those of onnxruntime, integers are equal, and
floats differ by at most 1e-4 of the largest value (float16: 2e-3). If onnxruntime rejects a model
or crashes, the build has to reject it, too. `--write` writes the counts and all other cases to
`docs/evidence/coverage.md`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests
from onnx.numpy_helper import to_array

from benchmarks.coverage.networks import PAGE
from benchmarks.coverage.operator_forms import difference
from benchmarks.results import replace_block
from tilewright.core.process_info import usable_cores

RIGHT, BOTH = "right", "rejected by both"
SECONDS = 300
PAIR = 8
"""Number of tests that a worker takes at a time."""
BLOCK = "benchmarks.coverage.backend_tests"

Row = dict[str, str]


def main() -> None:
    """Run the tests. Print the counts, and cases that are neither right nor rejected by both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file that the run writes")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--write", action="store_true", help=f"put the counts into {PAGE.name}")
    options = parser.parse_args()
    rows = list(run_tests(select_tests(list(filter(None, options.only.split(",")))), options.jobs))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1))
    text = summary(rows)
    print(text)
    if options.write:
        replace_block(PAGE, BLOCK, text)


def select_tests(parts: Sequence[str]) -> list[Any]:
    """Return the tests whose names contain one of `parts`, or all tests if `parts` is empty."""
    tests = load_model_tests(kind="node")
    return [test for test in tests if not parts or any(part in test.name for part in parts)]


def run_tests(tests: Sequence[Any], jobs: int) -> Iterator[Row]:
    """Run tests in other processes, and yield one row per test.

    A test that crashes its process is run again in a separate process.
    """
    waiting = [list(tests[place : place + PAIR]) for place in range(0, len(tests), PAIR)]
    while waiting:
        pool = ProcessPoolExecutor(jobs, get_context("spawn"))
        futures = [(batch, pool.submit(rows_of, batch)) for batch in waiting]
        waiting, broken = [], False
        for batch, future in futures:
            try:
                result = future.result(timeout=SECONDS)
            except (BrokenProcessPool, TimeoutError):
                for process in list((pool._processes or {}).values()):
                    process.kill()
                result = []
                if broken:  # it was not this one
                    waiting.append(batch)
                elif len(batch) > 1:
                    waiting += [[test] for test in batch]
                else:
                    result = [_row(batch[0], "crash", "the process ended, or hung")]
                broken = True
            for row in result:
                if row["result"] not in (RIGHT, BOTH):
                    print(f"{row['test']}: {row['result']}: {row['reason']}", flush=True)
                yield row
        pool.shutdown(cancel_futures=True)


def rows_of(tests: Sequence[Any]) -> list[Row]:
    """Run tests in this process, and return one row per test."""
    return [_run_test(test) for test in tests]


def _run_test(test: Any) -> Row:
    inputs = test.data_sets[0][0] if test.data_sets else []
    names = [info.name for info in test.model.graph.input]
    arrays = [to_array(i) if isinstance(i, onnx.TensorProto) else i for i in inputs]
    given = dict(zip(names, arrays, strict=False))
    expected: list[Any] | None = None
    try:
        expected = _onnxruntime(test.model, given)
        refusal = ""
    except Exception as error:  # whatever onnxruntime says of a model that it does not run
        refusal = str(error).replace("\n", " ")
    try:
        result = _run_ours(test.model, given)
    except Exception as error:
        from tilewright.core.errors import TilewrightError

        message = str(error).replace("\n", " ")
        if not isinstance(error, TilewrightError):
            return _row(test, "traceback", f"{type(error).__name__}: {message}")
        return _row(test, BOTH if refusal else "refused", message)
    if expected is None:
        return _row(test, "built", f"onnxruntime rejects it: {refusal}")
    for ours, theirs in zip(result, expected, strict=True):
        if message := _different(ours, theirs):
            return _row(test, "wrong", message)
    return _row(test, RIGHT, "")


def _different(ours: Any, theirs: Any) -> str:
    """Describe how an output differs; "" if it is equal.

    Sequences are compared element by element.
    """
    if not isinstance(theirs, list):
        return difference(np.asarray(ours), np.asarray(theirs))
    if not isinstance(ours, list) or len(ours) != len(theirs):
        return "a sequence of another length"
    results = (_different(*pair) for pair in zip(ours, theirs, strict=True))
    return next(filter(None, results), "")


def _row(test: Any, result: str, reason: str) -> Row:
    return {"test": test.name, "result": result, "reason": reason[:400]}


def _onnxruntime(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, inputs))


def _run_ours(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    import tilewright
    from tilewright.flows.build import build_artifact
    from tilewright.search import LocalRunner
    from tilewright.tuning.build_options import BuildOptions

    shapes = {
        name: value.shape
        for name, value in inputs.items()
        if isinstance(value, np.ndarray) and _is_dynamic(model, name)
    }
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "model.onnx", Path(folder) / "artifact"
        path.write_bytes(model.SerializeToString())
        options = BuildOptions(
            model=str(path), out=out, target="cpu:threads=1", trials=0, input_shapes=shapes
        )
        build_artifact(LocalRunner(), options)
        return list(tilewright.load(out, allow_code=True).run(None, inputs))


def _is_dynamic(model: onnx.ModelProto, name: str) -> bool:
    (info,) = (info for info in model.graph.input if info.name == name)
    dimensions = info.type.tensor_type.shape.dim
    return any(not dimension.HasField("dim_value") for dimension in dimensions)


def summary(rows: Sequence[Row]) -> str:
    """Return the counts, and a Markdown table of cases neither right nor rejected by both."""
    counts = Counter(row["result"] for row in rows)
    good = counts[RIGHT] + counts[BOTH]
    message = "; ".join(f"{kind}: {number:,}" for kind, number in counts.most_common())
    others = [row for row in rows if row["result"] not in (RIGHT, BOTH)]
    lines = "".join(
        f"| `{row['test']}` | {row['result']} | {row['reason'].replace('|', '/')} |\n"
        for row in others
    )
    head = "| test | result | reason |\n| --- | --- | --- |\n" if others else ""
    share = 100 * good / max(len(rows), 1)
    return f"{good:,} of {len(rows):,} tests hold ({share:.1f} %). {message}.\n\n{head}{lines}"


if __name__ == "__main__":
    main()
