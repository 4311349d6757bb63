"""Functions that run quantised Relax modules on the simulated VTA from a TVM script.

    mod = partition_for_vta(mod, target="vta-pynq")
    ex = tvm.compile(mod, "llvm")
    relax.VirtualMachine(ex, tvm.cpu())["main"](x)

`docs/guides/tvm.md` is the guide. Importing this module does not import TVM.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.core.errors import UnknownName
from tilewright.core.tvm_types import IRModule
from tilewright.flows.build import tuned_picks
from tilewright.networks.artifact import canonical_workloads
from tilewright.networks.errors import NothingToOffload
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.pooling import pool_where_faster
from tilewright.networks.offloading.workloads import unfold_for
from tilewright.networks.tvm_runtime import (
    RUN,
    LayerCycles,
    OffloadError,
    clock_hz,
    inputs_of,
    layer_cycles,
    register,
    serialise_program,
)
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Builds, capability, traits_of
from tilewright.targets.layer import Layer
from tilewright.targets.registry import kind_of, make_target
from tilewright.tuning.schedule_lookup import pool_rule, read_picks

if TYPE_CHECKING:
    from tilewright.networks.integer.graph import CpuIsland, IntegerGraph
    from tilewright.networks.tvm_user_modules import OffloadedCall


@dataclass(frozen=True)
class Offloaded:
    """The part of a Relax module that runs on the accelerator.

    Attributes:
        layers: the offloaded layers with their cycles.
        left: operators of supported types that TVM runs nevertheless: the reason, by the name of
            the operator's variable.
        clock_hz: clock frequency of the accelerator in Hz.
    """

    layers: tuple[LayerCycles, ...]
    left: dict[str, str]
    clock_hz: float

    @property
    def cycles(self) -> int:
        """Total cycles of all offloaded layers."""
        return sum(layer.cycles for layer in self.layers)

    @property
    def milliseconds(self) -> float:
        """Total time of all offloaded layers in milliseconds."""
        return self.cycles / self.clock_hz * 1e3


def partition_for_vta(
    mod: IRModule,
    target: str = "vta-pynq",
    *,
    schedules: str | Path | None = None,
    trials: int = 0,
    seed: int = 0,
    keep_float: Collection[str] = (),
) -> IRModule:
    """Return a module in which the supported part of `main` runs on the accelerator.

    TVM compiles the rest of `main`. The function through which the module calls the accelerator is
    registered with TVM.

    Args:
        mod: quantised Relax module (QDQ) with constant weights. It is not changed.
        target: name of the target.
        schedules: folder that `tilewright tune` wrote. Without it, each workload gets the best
            schedule of `trials` trials, or its rule schedule if `trials` is 0.
        trials: number of trials per workload.
        seed: seed of the tuner.
        keep_float: names of variables to leave to TVM, together with the layers that they belong
            to.

    Raises:
        UnknownName: the target or a variable does not exist.
        OffloadError: the target is not a VTA.
        QuantisationError: the module is not quantised.
        NothingToOffload: no part of the module runs on the accelerator.
        DynamicShapeError: the module has dynamic shapes.
        ImportFailedError: the module has an unsupported form.
        PickError: the schedules do not match the module or the target.
        WorkloadError: a workload has no schedule that runs on the board.
    """
    machine = make_target(target)
    if capability(machine, Builds) is None:
        raise OffloadError(
            f"programs of {machine.name} cannot be executed here, so nothing can be offloaded "
            "to it; choose a VTA"
        )
    from tilewright.networks.integer.extraction import graph_of_module
    from tilewright.networks.tvm_user_modules import offload_layers, view_of

    view = view_of(mod)
    for name in keep_float:
        if name not in view.types:
            raise UnknownName("variable of main", name, sorted(view.types))
    accelerator = Accelerator.for_target(machine)
    graph = graph_of_module(
        view.flat, view.types, view.outputs, traits_of(machine).blocks, keep_float=keep_float,
        unfold=lambda plain: unfold_for(plain, accelerator),
        pool=pool_rule(Path(schedules), machine) if schedules is not None
        else lambda convolution, pool: pool_where_faster(convolution, pool, accelerator),
    )  # fmt: skip
    if not graph.layers:
        raise NothingToOffload(_why_nothing(graph, machine))
    workloads = canonical_workloads(graph)
    if schedules is not None:
        picks = read_picks(Path(schedules), workloads, machine)
    else:
        picks = tuned_picks(workloads, machine, trials, seed)
    register()
    return offload_layers(
        mod, view, graph, list(_steps(graph, picks, machine, kind_of(target)[0].name))
    )


def offloaded(mod: IRModule) -> Offloaded:
    """Return the offloaded layers of a module from `partition_for_vta`, with their cycles.

    Args:
        mod: the partitioned module.

    Raises:
        NothingToOffload: the module has no offloaded layers.
    """
    from tilewright.networks.tvm_user_modules import left_operators, offloaded_calls

    programs = [content for _, content in offloaded_calls(mod, RUN)]
    if not programs:
        raise NothingToOffload("no part of the module is offloaded; call partition_for_vta first")
    layers = tuple(layer for content in programs for layer in layer_cycles(content))
    return Offloaded(layers, left_operators(mod), clock_hz(programs[0]))


def _why_nothing(graph: IntegerGraph, target: Target) -> str:
    if graph.left:
        name, why = next(iter(graph.left.items()))
        return (
            f"no part of the module can run on {target.name}; the first candidate is the "
            f"operator '{name}', but {why}"
        )
    return (
        f"no part of the module can run on {target.name}: it contains no convolution, matrix "
        "product or pooling with int8 inputs whose result is quantised again; quantise more "
        "of the model (docs/guides/quantise.md)"
    )


def _steps(
    graph: IntegerGraph, picks: Sequence[Pick], target: Target, kind: str
) -> Iterator[OffloadedCall | CpuIsland]:
    from tilewright.networks.tvm_user_modules import OffloadedCall

    place = {layer.output: i for i, layer in enumerate(graph.layers)}
    for run in _runs(graph):
        if not isinstance(run, list):
            yield run
            continue
        matching = [picks[place[layer.output]] for layer in run]
        outputs = _read_elsewhere(graph, run)
        content = serialise_program(graph, run, outputs, matching, target, kind)
        digest = hashlib.sha256(content).hexdigest()
        values = tuple(graph.values[name] for name in outputs)
        yield OffloadedCall(RUN, digest, content, inputs_of(run), values)


def _runs(graph: IntegerGraph) -> Iterator[list[Layer] | CpuIsland]:
    """Yield the steps of a network in order, with consecutive accelerator layers as one group.

    Args:
        graph: the integer network.

    Yields:
        A list of accelerator layers, or a step that the CPU computes (an island).
    """
    run: list[Layer] = []
    for step in graph.steps:
        if isinstance(step, Layer):
            run.append(step)
            continue
        if run:
            yield run
        run = []
        yield step
    if run:
        yield run


def _read_elsewhere(graph: IntegerGraph, run: Sequence[Layer]) -> list[str]:
    """Return the outputs of a group of layers that are read outside of the group.

    The reader may be another layer, TVM or the caller.

    Args:
        graph: the integer network.
        run: the group: consecutive layers on the accelerator.

    Returns:
        Names of the outputs, in the order of the layers.
    """
    matching = {layer.output for layer in run}
    read = set(graph.results.values())
    for step in graph.steps:
        if not isinstance(step, Layer):
            read.update(step.inputs)
        elif step.output not in matching:
            read.update(inputs_of([step]))
    return [layer.output for layer in run if layer.output in read]


__all__ = ["Offloaded", "offloaded", "partition_for_vta", "register"]
