"""Runs TVM's own tuner, MetaSchedule, on a kernel's TensorIR function.

Its design space, evolutionary search, boosted trees and parallel builder are as TVM ships them.
Programs are measured by the target, so that every tuner's seconds are the same seconds.

The function it gets is the one our schedules start from, with its data and weights already packed
in blocks as in the kernel's baseline config. A program is checked against the same reference.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Configs, Lowered, Measurements, Ragged, Target
from tilewright.targets.cpu.compile import FUNCTION, llvm_target
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.pipeline import lowering
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.features import Features
from tilewright.targets.kernels import KernelCode
from tilewright.targets.workload import Workload

BUILD_SECONDS = 120.0  # a new process takes half a minute to import TVM
TRIALS_A_ROUND = 64  # MetaSchedule's own default


class Trials:
    """What MetaSchedule measured, in order; `seconds` is NaN where a program was not valid,
    `elapsed` since the search began."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.seconds: list[float] = []
        self.elapsed: list[float] = []
        self.function: Any = None
        """The TensorIR of what MetaSchedule takes for the fastest."""
        self._best: Lowered | None = None

    @property
    def best(self) -> Lowered:
        """The fastest program, a batch of one. Raises `ValueError` if nothing was valid."""
        if self._best is None:
            raise ValueError("MetaSchedule measured nothing valid")
        return self._best

    def add(self, lowered: Lowered, measured: Measurements) -> None:
        """Note a batch."""
        for row, seconds in enumerate(measured.seconds):
            if seconds < np.nanmin([*self.seconds, np.inf]):
                self._best = lowered.rows(np.array([row]))
            self.seconds.append(float(seconds))
            self.elapsed.append(time.perf_counter() - self.begin)


def build(mod: Any, target: Any, params: Any) -> Any:
    """`default_build` of MetaSchedule, with the name that our libraries' function has."""
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    function = mod["main"].with_attr("global_symbol", FUNCTION)
    module = tvm.IRModule({FUNCTION: function})
    return tvm.compile(module, target=target, tir_pipeline=lowering()).mod


def export(module: Any) -> str:
    """The path of a shared library."""
    path = Path(tempfile.mkdtemp()) / "kernel.so"
    module.export_library(str(path))
    return str(path)


def tune(
    target: Target, workload: Workload, trials: int, seed: int, *, quick: bool = False
) -> Trials:
    """MetaSchedule with so many measurements of one workload on a CPU target; `quick`, with an
    eighth of its population and one generation, for its own search takes minutes a round. Raises
    `WorkloadError` where the target has no kernel."""
    spec = CpuSpec.parse(target.name.partition(":")[2])
    import tvm
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.builder import LocalBuilder

    function = kernel_for(workload, spec).define(workload, spec, _baseline_values(spec, workload))
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    small = {"population_size": 64, "genetic_num_iters": 1, "init_min_unmeasured": 32}
    found = Trials()
    with tempfile.TemporaryDirectory() as folder:
        database = ms.tune_tir(
            module,
            llvm_target(spec),
            folder,
            trials,
            num_trials_per_iter=min(TRIALS_A_ROUND, trials),
            builder=LocalBuilder(
                max_workers=spec.threads, timeout_sec=BUILD_SECONDS, f_build=build, f_export=export,
            ),
            runner=_runner(target, workload, baseline_config(target, spec, workload), found),
            # All of them: AddToDatabase is what the search learns of measured programs by.
            measure_callbacks="default",
            database="memory",
            strategy=ms.search_strategy.EvolutionarySearch(**(small if quick else {})),
            num_tuning_cores=1,
            seed=seed,
        )  # fmt: skip
        schedule = ms.tir_integration.compile_tir(database, module, llvm_target(spec))
    found.function = None if schedule is None else schedule.mod["main"]
    return found


def build_network(target: Target, network: str, out: Path, trials: int) -> None:
    """As `tilewright build`, with MetaSchedule's kernels in the place of ours, of so many
    measurements a workload."""
    from tilewright import networks
    from tilewright.networks.artifact.library import compile_files
    from tilewright.networks.artifact.manifest import write_folder
    from tilewright.networks.compiled.layers import kernel_layers

    spec = CpuSpec.parse(target.name.partition(":")[2])
    loaded = networks.load(network)
    layers = kernel_layers(loaded.whole.flat, target.space)
    workloads = dict.fromkeys(layer.workload for layer in layers)
    functions = {workload: tune(target, workload, trials, 0).function for workload in workloads}
    picks = {
        workload: Pick("kernels", tuple(map(int, baseline_config(target, spec, workload)[0])))
        for workload in workloads
    }
    made = compile_files(
        loaded.whole,
        layers,
        picks,
        WithFunctions(spec, functions),
        "cpu",
        name=network,
        total_macs=sum(loaded.examined.found.macs.values()),
    )
    write_folder(out, made.files, made.manifest)


class WithFunctions(CpuTarget):
    """The processor, with given TensorIR functions for some workloads: None is ours."""

    def __init__(self, spec: CpuSpec, functions: Mapping[Workload, Any]) -> None:
        super().__init__(spec)
        self._functions = functions

    def kernel(self, workload: Workload, config: Sequence[int]) -> KernelCode:
        ours, theirs = super().kernel(workload, config), self._functions[workload]
        return ours if theirs is None else replace(ours, function=theirs)


def baseline_config(target: Target, spec: CpuSpec, workload: Workload) -> Configs:
    """The kernel's own choice, which decides how weights lie; shape (1, knobs)."""
    values, space = _baseline_values(spec, workload), target.space(workload)
    places = [knob.values.index(values[knob.name]) for knob in space.knobs]
    return np.array([places], dtype=np.int32)


def _baseline_values(spec: CpuSpec, workload: Workload) -> Mapping[str, int]:
    return kernel_for(workload, spec).baseline_values(workload, spec)


def _runner(target: Target, workload: Workload, config: Configs, found: Trials) -> Any:
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

    @derived_object
    class Future(PyRunnerFuture):  # type: ignore[misc]
        def __init__(self, result: Any) -> None:
            super().__init__()
            self._result = result

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            return self._result

    @derived_object
    class Runner(PyRunner):  # type: ignore[misc]
        def run(self, runner_inputs: Any) -> Any:
            libraries = [Path(str(each.artifact_path)).read_bytes() for each in runner_inputs]
            lowered = _lowered(workload, config, libraries)
            measured = target.measure(lowered)
            found.add(lowered, measured)
            results = []
            for row in range(len(libraries)):
                if measured.valid[row]:
                    results.append(RunnerResult([float(measured.seconds[row])], None))
                else:
                    results.append(RunnerResult(None, str(measured.reason[row])))
            return [Future(result) for result in results]

    return Runner()


def _lowered(workload: Workload, config: Configs, libraries: Sequence[bytes]) -> Lowered:
    n = len(libraries)
    nothing: NDArray[np.object_] = np.full(n, "", dtype=object)
    programs = [np.frombuffer(library, np.uint8) for library in libraries]
    return Lowered(
        workload, np.repeat(config, n, axis=0), nothing, nothing.copy(), Features.none(n),
        {"library": Ragged.of(programs)},
    )  # fmt: skip
