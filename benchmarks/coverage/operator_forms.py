"""Writes the table of operator forms that the CPU target compiles correctly.

    python -m benchmarks.coverage.operator_forms
    python -m benchmarks.coverage.operator_forms --only Conv,Resize

The forms come from random operators (`benchmarks.coverage.drawn_forms`) and from the node tests of
the `onnx` package. Each case is compiled as the CPU target compiles it and compared with
onnxruntime: element types and shapes must be equal, integers must be equal, and floats may differ
by 1e-4 of the largest value. A form is added to the table if all its cases are right. Forms on
which onnxruntime crashes are left out, because there is nothing to compare with.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from numpy.typing import NDArray
from onnx import helper
from onnx.backend.test.loader import load_model_tests

from benchmarks.coverage.drawn_forms import NEWEST_OPSET, OPSETS, TYPES, Sketch, draw_sketches
from tilewright.networks import partition
from tilewright.networks.errors import OperatorImportError
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, NormalGraph, data_inputs
from tilewright.networks.onnx.normalise import fixed_graph, make_importable
from tilewright.networks.onnx.to_qdq import to_qdq
from tilewright.networks.onnxruntime_options import quiet_options
from tilewright.networks.partition.supported_forms import (
    CONSTANTS,
    TABLE,
    Forms,
    FormTable,
    OperatorForm,
)

Array = NDArray[Any]
BATCH = 48
"""Number of cases that are compiled together, because building a library takes a second in any
case."""
TOLERANCE = 1e-4
OF_HALVES = 2e-3
"""Tolerance for float16, relative to the largest value. It is higher because onnxruntime rounds to
float16 after each operator."""


@dataclass(frozen=True, eq=False)
class Case:
    """A random operator of a certain form: a model with inputs and onnxruntime's outputs."""

    form: OperatorForm
    model: bytes
    inputs: dict[str, Array]
    expected: dict[str, Array]


def cases(sketches: Iterable[Sketch], most: int) -> Iterator[Case]:
    """Yield the sketches that onnxruntime can run and that have a form.

    At most `most` cases are yielded per form and axis.
    """
    seen: dict[tuple[OperatorForm, int | None], int] = defaultdict(int)
    for number, sketch in enumerate(sketches):
        model, inputs = sketch.model(f"n{number}")
        form = Forms(NormalGraph(model, ())).form_of(model.graph.node[0])
        axis = next((a.i for a in sketch.attributes if a.name == "axis"), None)
        if form is None or seen[form, axis] >= most:
            continue
        seen[form, axis] += 1
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), _reference_options(), providers=["CPUExecutionProvider"]
            )
            names = [output.name for output in session.get_outputs()]
            made = session.run(names, inputs)
            fixed = fixed_graph(model, {})
        except Exception:  # onnxruntime has no kernel for it, or the sketch is no valid model
            continue
        left = [node for node in fixed.graph.node if node.op_type == sketch.operator]
        arrays = all(isinstance(item, np.ndarray) and item.dtype != object for item in made)
        if len(left) != 1 or len(fixed.graph.node) != 1 or not arrays:
            continue
        form = Forms(fixed).form_of(left[0])
        if form is not None and 0 not in [size for item in made for size in item.shape]:
            expected = dict(zip(names, made, strict=True))
            yield Case(form, model.SerializeToString(), inputs, expected)


def judge(batch: Sequence[tuple[bytes, dict[str, Array], dict[str, Array]]]) -> list[str]:
    """Compile models together, run them, and return what is wrong with each; "" if nothing is.

    Args:
        batch: per model, its bytes, its inputs by name, and the expected outputs by name.
    """
    from tilewright.networks.compiled.kernel_calls import rewrite_calls
    from tilewright.networks.compiled.library import compiled_library
    from tilewright.networks.compiled.loaded_library import LoadedLibrary
    from tilewright.networks.relax.importer import import_onnx
    from tilewright.targets.capabilities import CompilesKernels, capability
    from tilewright.targets.registry import make_target

    said = [""] * len(batch)
    target = capability(make_target("cpu"), CompilesKernels)
    assert target is not None
    parts = []
    for number, (data, _, _) in enumerate(batch):
        try:
            normal = fixed_graph(to_qdq(onnx.ModelProto.FromString(data)), {})
            make_importable(normal)
            inputs = [info.name for info in data_inputs(normal.model)]
            import_onnx(normal.model, inputs)
            parts.append((number, normal.model))
        except OperatorImportError as error:
            said[number] = f"import: {error}"
        except Exception as error:  # a rewrite does not know the form
            said[number] = f"rewrite: {error!r}"
    if not parts:
        return said
    joined = _join_models([model for _, model in parts])
    names = [info.name for info in joined.graph.input]
    flat = import_onnx(joined, names)
    made = rewrite_calls(flat, (), {}, target.registers)
    content, weights = compiled_library(
        made.module, target.code_target(), target.code_pipeline(), flat
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.so"
        path.write_bytes(content)
        library = LoadedLibrary(path, weights)
        known = {name: array for _, inputs, _ in batch for name, array in inputs.items()}
        results = library([known[name] for name in names])
    values = dict(zip([info.name for info in joined.graph.output], results, strict=True))
    for number, _ in parts:
        for name, wanted in batch[number][2].items():
            said[number] = said[number] or difference(values[name], wanted)
    return said


def difference(result: Array, wanted: Array) -> str:
    """Describe how an array differs from the expected array; "" if it does not."""
    if result.dtype != wanted.dtype or result.shape != wanted.shape:
        return f"{result.dtype}{result.shape} instead of {wanted.dtype}{wanted.shape}"
    if not np.issubdtype(wanted.dtype, np.floating):
        return "" if np.array_equal(result, wanted) else "other numbers"
    finite = wanted[np.isfinite(wanted)]
    share = OF_HALVES if wanted.dtype == np.float16 else TOLERANCE
    bound = share * float(np.abs(finite).max(initial=1e-3))
    same = np.isclose(result, wanted, rtol=0, atol=bound, equal_nan=True)
    return "" if same.all() else "other numbers"


def _join_models(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Join several models into one. The models must have different names of tensors."""
    graph = onnx.GraphProto(name="forms")
    for model in models:
        data = {info.name for info in data_inputs(model)}
        graph.node.extend(model.graph.node)
        graph.initializer.extend(model.graph.initializer)
        graph.input.extend(info for info in model.graph.input if info.name in data)
        graph.output.extend(model.graph.output)
        graph.value_info.extend(model.graph.value_info)
    opsets = {o.domain: o for model in models for o in model.opset_import}
    return helper.make_model(graph, opset_imports=list(opsets.values()), ir_version=10)


def _reference_options() -> Any:
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return options


class Judges:
    """A process that checks batches of cases, since the compiler or compiled code may crash."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def judge(self, batch: Sequence[Case]) -> list[str]:
        """Return what is wrong with each case.

        If a batch crashes the process, its halves are checked separately.
        """
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        sent = [(case.model, case.inputs, case.expected) for case in batch]
        try:
            return self._pool.submit(judge, sent).result(timeout=30 + 10 * len(batch))
        except (Exception, BrokenProcessPool) as error:
            if isinstance(error, BrokenProcessPool | TimeoutError):
                for process in list((self._pool._processes or {}).values()):
                    process.kill()
                self._pool = None
            if len(batch) == 1:
                return [f"compile: {type(error).__name__} {str(error)[:200]}"]
            middle = len(batch) // 2
            return [*self.judge(batch[:middle]), *self.judge(batch[middle:])]

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown()


def main(
    only: Annotated[str, typer.Option(help="Operators, separated by commas.")] = "",
    table: Annotated[
        Path, typer.Option(help="File of the table; forms that are not checked now stay in it.")
    ] = (Path(partition.__path__[0]) / TABLE),
    node_tests: Annotated[
        bool,
        typer.Option(
            help="Also check the forms of the onnx package's tests; creating them takes 20 s."
        ),
    ] = True,
    opsets: Annotated[
        str, typer.Option(help="Only versions of operators in these opsets, separated by commas.")
    ] = "",
    types: Annotated[str, typer.Option(help="Only these element types.")] = ",".join(TYPES),
    draws: Annotated[int, typer.Option(min=1, help="Cases per form, in different sizes.")] = 2,
    wrong: Annotated[
        Path | None, typer.Option(help="File to list the forms that are left out.")
    ] = None,
) -> None:
    """Check forms and write the table.

    To get a table with checked forms only, remove the table first and run the command without
    options.
    """
    chosen = frozenset(filter(None, only.split(",")))
    by_opset: dict[int, list[Case]] = defaultdict(list)
    seen: dict[OperatorForm, int] = defaultdict(int)
    # Of some forms there are many node tests.
    drawn = draw_sketches(
        chosen, draws, list(map(int, filter(None, opsets.split(",")))) or OPSETS, types.split(",")
    )
    tests = node_test_sketches(chosen) if node_tests else iter(())
    for sketches, most in ((tests, 4), (drawn, draws)):
        for case in cases(sketches, most):
            seen[case.form] += 1
            imports = onnx.ModelProto.FromString(case.model).opset_import
            by_opset[max(o.version for o in imports if not o.domain)].append(case)
    print(f"{len(seen):,} forms in {sum(map(len, by_opset.values())):,} cases", flush=True)
    judges, bad, judged = Judges(), dict[OperatorForm, str](), set[OperatorForm]()
    kept = _other_forms(table, set(seen))
    for opset, result in sorted(by_opset.items()):
        for start in range(0, len(result), BATCH):
            batch = result[start : start + BATCH]
            for case, said in zip(batch, judges.judge(batch), strict=True):
                judged.add(case.form)
                if said:
                    bad.setdefault(case.form, said)
        print(
            f"opset {opset}: {len(result):,} cases; {len(bad):,} forms compute wrong values",
            flush=True,
        )
    judges.close()
    _write(table, FormTable([*kept, *(judged - set(bad))]))
    if wrong is not None:
        wrong.write_text("\n".join(f"{form}: {said}" for form, said in sorted(bad.items())))


def _other_forms(table: Path, forms: set[OperatorForm]) -> list[OperatorForm]:
    """Return the forms of a table that are not checked in this run."""
    if not table.exists():
        return []
    rows = FormTable.from_json(json.loads(table.read_text())).forms
    return [form for form in rows if form not in forms]


def _write(path: Path, table: FormTable) -> None:
    """Write the table with one row per line, so that changes are readable in a diff."""
    rows = table.to_json()
    assert isinstance(rows, list)
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(f"[\n{lines}\n]\n")


def node_test_sketches(chosen: Collection[str]) -> Iterator[Sketch]:
    """Yield the operators of ONNX's single-operator tests, either all or the chosen ones.

    Each operator is yielded as it is, and again with those inputs as constants that models usually
    have as constants.
    """
    for test in load_model_tests(kind="node"):
        node, *others = test.model.graph.node
        versions = [o.version for o in test.model.opset_import if o.domain in STANDARD_DOMAINS]
        opset = max(versions, default=1)
        arrays = test.data_sets[0][0] if test.data_sets else []
        plain = all(isinstance(array, np.ndarray | np.generic) for array in arrays)
        if others or not plain or opset > NEWEST_OPSET or (chosen and node.op_type not in chosen):
            continue
        names = [info.name for info in test.model.graph.input]
        known = dict(zip(names, map(np.asarray, arrays), strict=False))
        inputs = tuple(known.get(name) for name in node.input)
        places = frozenset(CONSTANTS.get(node.op_type, ()))
        for constant in {frozenset(), places - {0} if len(inputs) > 1 else frozenset()}:
            yield Sketch(
                node.op_type, node.domain, opset, tuple(node.attribute), inputs, constant,
                "".join(str(int(bool(name))) for name in node.output),
            )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
