"""Compares TVM's MetaSchedule, in its own setting, with Tilewright's default tuner on CPU layers.

    python -m benchmarks.cpu.metaschedule --out built/natural.parquet --quick   # two layers
    python -m benchmarks.cpu.metaschedule --out FILE --seeds 3                  # hours
    python -m benchmarks.cpu.metaschedule --redraw benchmarks/rows/metaschedule-natural.parquet

MetaSchedule gets a Relax function of plain operators, with NHWC images and HWIO weights that are
constants. Its passes, design space, population, generations, cost model, builder and runner are
those of `relax.pipeline.static_shape_tuning_pipeline` with `cpu_weight_prepack`, except for time
limits. The steps of this pipeline are called one by one, because the pipeline does not accept a
seed. Tilewright's tuner gets the same layer as a workload, with the layouts of its own kernels.
Each tuner measures with its own runner.

The fastest programs of both tuners are then timed in turns by TVM's evaluator in one process, after
MetaSchedule's output was compared with numpy. Everything runs on one thread.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "1")  # read when TVM is loaded

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.intervals import hierarchical, ratio_of_medians
from benchmarks.layers import cpu_workload
from benchmarks.results import markdown_table, row_arguments, split_names
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.targets.base import Lowered
from tilewright.targets.cpu.compile import FUNCTION, llvm_target
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload

LAYERS = (
    "resnet18 3x3 64", "resnet18 3x3 128", "resnet18 3x3 256", "resnet18 7x7/2",
    "resnet18 3x3/2 256", "mobilenet_v2 1x1 192-64", "mobilenet_v2 1x1 960-320",
    "mobilenet_v2 dw 144", "vit_tiny qkv", "vit_tiny mlp",
)  # fmt: skip
QUICK = ("mobilenet_v2 1x1 192-64", "vit_tiny qkv")
TURNS = 7
PATIENCE_SECONDS = 120.0
"""Time limit in seconds for building a program and for running it. TVM's default of 30 s is too
short if a process takes half a minute to import TVM."""


def main() -> None:
    """Tune and time the layers, write one row per trial, and print the table."""
    parser = row_arguments(__doc__, "built/metaschedule-natural.parquet")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--layers", default="", help="names, separated by commas")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    if options.redraw:
        print(table(pd.read_parquet(options.redraw)))
        return
    named = split_names(options.layers)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for name in named or (QUICK if options.quick else LAYERS):
            rows += compare_tuners(name, options.trials, seed)
            pd.DataFrame(rows).to_parquet(options.out)
            print(f"{name}, seed {seed}: {_final_text(pd.DataFrame(rows), name, seed)}", flush=True)
    print(table(pd.DataFrame(rows)))


def compare_tuners(name: str, trials: int, seed: int) -> list[dict[str, Any]]:
    """Tune a layer with both tuners, and return one row per trial.

    `final_ms` is the time of a tuner's fastest program in ms, measured in turns with the other
    tuner's program. All rows of a tuner have the same value.
    """
    target = make_target("cpu:threads=1")
    assert isinstance(target, CpuTarget)
    workload = cpu_workload(name)
    tensors = SampleTensors(workload, target.spec, target.space(workload), seed)
    ours = tune_by_default(target, workload, trials, seed)
    theirs = MetaSchedule(tensors, target.spec, trials, seed)
    calls = {
        "default": _kernel(target, tensors, ours.best),
        "metaschedule": theirs.kernel(),
    }
    milliseconds = in_turns(calls)
    traces = {
        "default": (np.fmin.accumulate(ours.seconds), ours.elapsed),
        "metaschedule": (np.fmin.accumulate(theirs.seconds), theirs.elapsed),
    }
    return [
        {
            "layer": name, "seed": seed, "tuner": tuner, "trial": trial,
            "best_seconds": best, "elapsed": elapsed,
            "final_ms": milliseconds[tuner],
        }
        for tuner, trace in traces.items()
        for trial, (best, elapsed) in enumerate(zip(*trace, strict=True))
    ]  # fmt: skip


@dataclass(frozen=True)
class DefaultRun:
    """A run of the tuner `default` on a layer.

    `seconds` has one entry per measurement, NaN for a failed program. `elapsed` has the seconds
    from the beginning of the search to each measurement. `best` is the fastest program, as a batch
    of one.
    """

    seconds: list[float]
    elapsed: list[float]
    best: Lowered


def tune_by_default(target: CpuTarget, workload: Workload, trials: int, seed: int) -> DefaultRun:
    """Tune one layer with Tilewright's default tuner."""
    begin = time.perf_counter()
    seconds: list[float] = []
    elapsed: list[float] = []
    best = None
    for result in tune(target, workload, make_explorer("default"), trials=trials, seed=seed):
        seconds += list(map(float, result.measured.seconds))
        elapsed += [time.perf_counter() - begin] * len(result.configs)
        best = result.best_config
    assert best is not None, "some schedule of the trials runs"
    return DefaultRun(seconds, elapsed, target.lower(workload, best[None]))


class MetaSchedule:
    """A run of TVM's MetaSchedule on a layer.

    `seconds` has one entry per measurement of its runner, NaN for a failed program. `elapsed` has
    the seconds from the beginning of the search to each measurement.
    """

    def __init__(self, tensors: SampleTensors, spec: CpuSpec, trials: int, seed: int) -> None:
        import tvm
        from tvm import relax
        from tvm.s_tir import meta_schedule as ms
        from tvm.s_tir.meta_schedule.builder import LocalBuilder
        from tvm.s_tir.meta_schedule.runner import LocalRunner

        self.seconds: list[float] = []
        self.elapsed: list[float] = []
        self.target = llvm_target(spec)
        arrays, module = plain_module(tensors)
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, self.target:
            module = tvm.transform.Sequential([
                relax.transform.DecomposeOpsForInference(),
                relax.transform.CanonicalizeBindings(),
                relax.pipeline.zero_pipeline(),
                relax.transform.AttachAttrLayoutFreeBuffers(),
            ])(module)  # fmt: skip
            ms.relax_integration.tune_relax(
                module, {}, self.target, folder, trials, seed=seed,
                builder=LocalBuilder(max_workers=1, timeout_sec=PATIENCE_SECONDS),
                runner=LocalRunner(timeout_sec=PATIENCE_SECONDS),
                measure_callbacks=[*ms.MeasureCallback.create("default"), self._note(begin)],
            )  # fmt: skip
            self.module = tvm.transform.Sequential([
                relax.transform.MetaScheduleApplyDatabase(folder),
                relax.transform.SplitLayoutRewritePreproc(),
                relax.transform.LiftTransformParams(),
                relax.transform.FoldConstant(),
            ])(module)  # fmt: skip
        if not np.isfinite(self.seconds).any():
            raise ValueError(
                "MetaSchedule measured no valid schedule; end other work on this machine and "
                "repeat the command"
            )
        self._check(str(tensors.workload), arrays)

    def kernel(self) -> Any:
        """Return a callable that runs the layer on its own buffers, as TVM's evaluator does."""
        import tvm

        calls = (
            binding.value
            for block in self.module["main"].body.blocks
            for binding in block.bindings
            if isinstance(binding.value, tvm.relax.Call)
        )
        named = [call.args[0] for call in calls if call.op == tvm.ir.Op.get("relax.call_tir")]
        (function,) = (self.module[name] for name in named)  # others pack weights beforehand
        shapes = [tuple(int(length) for length in param.ty.shape) for param in function.params]
        alone = tvm.IRModule({FUNCTION: function.with_attr("global_symbol", FUNCTION)})
        rng = np.random.default_rng(0)
        arguments = [tvm.runtime.tensor(rng.random(shape, np.float32)) for shape in shapes]
        return _evaluator(tvm.compile(alone, target=self.target).mod, arguments)

    def _note(self, begin: float) -> Any:
        from tvm.ir.utils import derived_object
        from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback

        seconds, elapsed = self.seconds, self.elapsed

        @derived_object
        class Note(PyMeasureCallback):  # type: ignore[misc]
            """Callback that records the results of each batch of measurements, and their time."""

            def apply(
                self, scheduler: Any, task: int, candidates: Any, builds: Any, results: Any
            ) -> None:
                for result in results:
                    taken = result.run_secs
                    seconds.append(float(np.mean([float(s) for s in taken])) if taken else np.nan)
                    elapsed.append(time.perf_counter() - begin)

        return Note()

    def _check(self, layer: str, arrays: Sequence[NDArray[np.float32]]) -> None:
        import tvm
        from tvm import relax

        machine = relax.VirtualMachine(tvm.compile(self.module, target=self.target), tvm.cpu())
        data, expected = arrays[:-1], arrays[-1]
        result = machine["main"](*(tvm.runtime.tensor(array) for array in data)).numpy()
        error = np.abs(result - expected).max() / np.abs(expected).max()
        if not error < 1e-4:
            raise ValueError(f"MetaSchedule's program of {layer} differs by {error:.2g}")


def plain_module(tensors: SampleTensors) -> tuple[list[NDArray[np.float32]], Any]:
    """Return the arguments of a layer's function, and its Relax module of plain operators.

    The last argument is the expected output. Images have the layout (n, h, w, c). Weights and bias
    are constants of the module.
    """
    import tvm
    from tvm import relax
    from tvm.relax import op

    w, image = tensors.workload, tensors.workload.operator == "conv2d"
    data, expected = (
        _channels_last(item) if image else item for item in (tensors.data, tensors.expected)
    )
    weights = tensors.weights.transpose(2, 3, 1, 0) if image else tensors.weights.T
    given = {"data": data}
    if any(step.kind == "residual" for step in w.epilogue):
        residual = tensors.added["residual"]
        given["residual"] = _channels_last(residual) if image else residual
    variables = {
        name: relax.Var(name, relax.TensorType(array.shape, "float32"))
        for name, array in given.items()
    }
    builder = relax.BlockBuilder()
    with builder.function("main", list(variables.values())):
        with builder.dataflow():
            constant = relax.const(np.ascontiguousarray(weights), "float32")
            if image:
                value = op.nn.conv2d(
                    variables["data"], constant, strides=(w.stride_h, w.stride_w), groups=w.groups,
                    padding=(w.pad_top, w.pad_left, w.pad_bottom, w.pad_right),
                    data_layout="NHWC", kernel_layout="HWIO",
                )  # fmt: skip
            else:
                value = op.matmul(variables["data"], constant)
            for step in w.epilogue:
                if step.kind == "bias":
                    value = op.add(value, relax.const(tensors.added["bias"], "float32"))
                elif step.kind == "residual":
                    value = op.add(value, variables["residual"])
                elif step == EpilogueOp("max", 0):
                    value = op.nn.relu(value)
                else:
                    value = op.minimum(value, relax.const(np.float32(step.value), "float32"))
            result = builder.emit_output(builder.normalize(value))
        builder.emit_func_output(result)
    return [*map(np.ascontiguousarray, (*given.values(), expected))], tvm.IRModule(
        builder.get().functions
    )


def in_turns(calls: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Call functions in turns, and return the median of each function's results in ms."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            taken[name].append(call())
    return {name: 1e3 * float(np.median(series)) for name, series in taken.items()}


def table(rows: pd.DataFrame) -> str:
    """Return a Markdown table with one row per layer, medians over its seeds.

    The last row has the geometric mean with its interval, over the first seeds that all layers
    have.
    """
    head = (
        "layer", "`default`, ms", "tuning time", "MetaSchedule, ms", "tuning time",
        "`default` / MetaSchedule", "MetaSchedule after the tuning time of `default`",
    )  # fmt: skip
    cells: list[Sequence[str]] = []
    finals: dict[str, list[NDArray[np.float64]]] = {"default": [], "metaschedule": []}
    for layer in rows.layer.unique():
        of = {
            tuner: [item for _, item in group.groupby("seed")]
            for tuner, group in rows[rows.layer == layer].groupby("tuner")
        }
        final = {t: np.array([run.final_ms.iloc[0] for run in runs]) for t, runs in of.items()}
        elapsed = {t: np.median([run.elapsed.max() for run in runs]) for t, runs in of.items()}
        for tuner, values in final.items():
            finals[tuner].append(values)
        ours, theirs = np.median(final["default"]), np.median(final["metaschedule"])
        cells.append((
            layer, f"{ours:.3f}", f"{elapsed['default']:.0f} s", f"{theirs:.3f}",
            f"{elapsed['metaschedule']:.0f} s", f"{ours / theirs:.2f}",
            _in_as_long(of["default"], of["metaschedule"]),
        ))  # fmt: skip
    fewest = min(map(len, finals["default"]))
    both = (
        np.array([values[:fewest] for values in finals[tuner]])
        for tuner in ("default", "metaschedule")
    )
    mean = hierarchical(ratio_of_medians, *both)
    text = mean.text(2, "-")
    return markdown_table(head, "lr", [*cells, ("geometric mean", "", "", "", "", text, "")])


def _in_as_long(ours: Sequence[pd.DataFrame], theirs: Sequence[pd.DataFrame]) -> str:
    """Describe MetaSchedule's progress when `default` was done: trials and best latency so far.

    The latency is relative to MetaSchedule's final best latency. Both numbers are medians over
    seeds.
    """
    counts, shares = [], []
    for mine, other in zip(ours, theirs, strict=True):
        early = other[other.elapsed <= mine.elapsed.max()]
        counts.append(len(early))
        if len(early):
            shares.append(early.best_seconds.min() / other.best_seconds.min())
    done = f"{np.median(counts):.0f} trials"
    return f"{done}, {np.median(shares):.2f} ×" if len(shares) == len(ours) else done


def _kernel(target: CpuTarget, tensors: SampleTensors, best: Lowered) -> Callable[[], float]:
    """Return a function that measures the seconds of one call of our program, with a warm cache."""
    import tvm

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(best.programs["library"][0].tobytes())
        module = tvm.runtime.load_module(str(path))
    space = target.space(tensors.workload)
    values = dict(
        zip(
            (knob.name for knob in space.knobs),
            map(int, space.values(best.configs)[0]),
            strict=True,
        )
    )
    return _evaluator(module, tensors.arguments(values))


def _evaluator(module: Any, arguments: Sequence[Any]) -> Callable[[], float]:
    import tvm

    evaluate = module.time_evaluator(FUNCTION, tvm.cpu(), number=1, repeat=5, min_repeat_ms=30)
    return lambda: float(np.min(evaluate(*arguments).results))


def _channels_last(images: NDArray[Any]) -> NDArray[Any]:
    return images.transpose(0, 2, 3, 1)


def _final_text(rows: pd.DataFrame, name: str, seed: int) -> str:
    result = rows[(rows.layer == name) & (rows.seed == seed)].groupby("tuner").final_ms.first()
    return f"{result['default']:.3f} ms, MetaSchedule {result['metaschedule']:.3f} ms"


if __name__ == "__main__":
    main()
