"""From a model to an artefact: int8, layers, schedules, one folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from networks import artefact
from networks.artefact import ArtefactError
from networks.artefact.accuracy import OF_FLOAT, OF_QUANTISED
from networks.errors import ImportFailedError, ModelFileError
from targets.base import Target
from targets.capabilities import Builds, CompilesKernels, blocks_of, capability
from targets.files import Json, as_object
from targets.printable import printable
from targets.registry import check_target, kind_of, make_target
from tuning.build_options import BuildOptions
from tuning.checks import check_source
from tuning.folders import FUSION
from tuning.labels import labels_of
from tuning.picks import PickError, Progress, pool_rule, read_picks, tuned_picks

if TYPE_CHECKING:
    import onnx

    from networks.accelerator import Accelerator, EpilogueMode
    from networks.integer.graph import IntegerGraph
    from networks.integer.pooling import PoolRule


@dataclass(frozen=True, eq=False)
class BuiltArtefact:
    """What was written: its manifest, and doubts about it."""

    manifest: Mapping[str, Json]
    warnings: tuple[str, ...]


Stage = Callable[[str], None]


def build_artefact(
    options: BuildOptions, stage: Stage | None = None, progress: Progress | None = None
) -> BuiltArtefact:
    """Build a network into `options.out`. `stage` is told what begins, `progress` how many of the
    workloads have a schedule.

    Raises `ArtefactError`, `PickError`, what reading and quantising the model raise, and
    `WorkloadError` for what the target cannot run.
    """
    say = stage or _nothing
    check(options)
    target = make_target(options.target)
    if capability(target, CompilesKernels) is not None:
        from tuning.compiling import build_library

        return BuiltArtefact(*build_library(options, target, say, progress))
    say("quantising")
    made = integer_network(options, target)
    graph = made.graph
    artefact.check_possible(graph, target, options.out, bare=options.bare)
    say("choosing schedules")
    workloads = artefact.canonical_workloads(graph)
    if options.schedules is not None:
        fused = labels_of(options.schedules) is not None
        picks = read_picks(
            options.schedules / FUSION if fused else options.schedules, workloads, target
        )
    else:
        picks = tuned_picks(workloads, target, options.trials, options.seed, progress)
    say("linking")
    manifest = artefact.build(
        graph, picks, target, kind_of(options.target)[0].name, options.out,
        notes={"quantisation": made.quantisation}, bare=options.bare,
        check=artefact.check_of(made.source, made.samples), tolerance=made.tolerance,
    )  # fmt: skip
    return BuiltArtefact(manifest, made.warnings)


def check(options: BuildOptions) -> None:
    """What can be told before any work. Raises `ArtefactError` for a folder with other files,
    `ModelFileError` and `PickError` for what is not there, and as `check_target`."""
    check_target(options.target)
    check_source(options.model)
    problem = artefact.in_the_way(options.out)
    if problem:
        raise ArtefactError(
            f"{options.out} is not written to: {problem}; choose another folder with --out"
        )
    if options.calibration is not None and not options.calibration.exists():
        raise ModelFileError(
            f"there are no calibration samples {options.calibration}; name an NPZ file or a folder "
            "of them"
        )
    if options.schedules is not None and not options.schedules.exists():
        raise PickError(
            f"there is no folder {options.schedules}; name one that 'tilewright tune' wrote, or "
            "leave out --schedules"
        )


@dataclass(frozen=True, eq=False)
class IntegerNetwork:
    """A network in integers: how it was quantised, as the manifest states it, warnings, and by what
    its outputs are judged: the model it came from, samples, and the bound on the relative error."""

    graph: IntegerGraph
    quantisation: Json
    warnings: tuple[str, ...]
    source: onnx.ModelProto
    samples: Sequence[Mapping[str, NDArray[Any]]]
    tolerance: float


def integer_network(
    options: BuildOptions, target: Target, *, apart: bool = False
) -> IntegerNetwork:
    """The network in integers for a target.
    What runs together is as `options.schedules` says, or nothing that may be `apart`. Raises
    `ArtefactError` for a target that runs no programs of ours, `PickError` for schedules of what is
    fused otherwise."""
    if capability(target, Builds) is None:
        raise ArtefactError(
            f"{target.name} runs no programs of ours, so nothing is built for it; choose a VTA"
        )
    from networks.accelerator import Accelerator
    from networks.extract import unfold_for
    from networks.integer.extraction import integer_graph
    from networks.onnx_reference import reference_model
    from networks.quantise import Options, Quantised, int8_model, model_with_weights, samples_for

    mode: EpilogueMode = "per-channel" if options.per_channel else "full"
    accelerator = Accelerator.of(target, mode)
    model = reference_model(model_with_weights(options.model, options.seed))
    on_cpu = (*options.keep_float, *_cheaper_on_cpu(options, accelerator))
    samples = samples_for(model, options.calibration, options.input_shapes)
    made = int8_model(
        model, samples, Options(keep_float=on_cpu, per_channel=options.per_channel),
        input_shapes=options.input_shapes,
    )  # fmt: skip
    is_float = isinstance(made, Quantised)
    warnings = made.report.warnings if isinstance(made, Quantised) else ()
    quantisation = made.report.to_json() if isinstance(made, Quantised) else made.to_json()
    name = Path(options.model).stem
    labels = None if apart or options.schedules is None else labels_of(options.schedules)
    free = apart or labels is not None
    graph = integer_graph(
        made.model, blocks_of(target), name=name, input_shapes=options.input_shapes,
        keep_float=on_cpu, unfold=lambda plain: unfold_for(plain, accelerator),
        pool=None if free else _pool_rule(options, target, accelerator), exact=options.exact,
    )  # fmt: skip
    if graph.lost:
        quantisation = {**as_object(quantisation), "rounded_weights_decibels": dict(graph.lost)}
    if labels is not None and options.schedules is not None:
        graph = _labelled(graph, labels, options.schedules / FUSION)
    default = OF_FLOAT if is_float else OF_QUANTISED
    tolerance = default if options.tolerance is None else options.tolerance
    return IntegerNetwork(graph, quantisation, warnings, model, samples.feeds, tolerance)


def _labelled(graph: IntegerGraph, labels: Mapping[str, bool], path: Path) -> IntegerGraph:
    """The network with what a tuned folder says is fused. Raises `PickError` where that may not
    be."""
    from networks.fusion import choices, fused

    offered = [str(choice) for choice in choices(graph).offered]
    unknown = [name for name, label in labels.items() if label and name not in offered]
    if unknown:
        raise PickError(
            f"{path} fuses '{printable(unknown[0])}', which this network does not offer as it is "
            "quantised here; tune it again, or build it as it was tuned"
        )
    return fused(graph, [labels.get(name, False) for name in offered])


def _pool_rule(options: BuildOptions, target: Target, accelerator: Accelerator) -> PoolRule:
    """Which max-pools are part of the convolution before them: as tuning decides it, or did."""
    from networks.pooling import pooled

    if options.schedules is not None:
        return pool_rule(options.schedules, target)
    return lambda convolution, pool: pooled(convolution, pool, accelerator)


def _cheaper_on_cpu(options: BuildOptions, accelerator: Accelerator) -> tuple[str, ...]:
    """The operators that could be offloaded and, by cost, are not: as tuning decides it."""
    from networks import load
    from networks.offload import decide
    from networks.onnx_source import refuse_unsupported

    examined = load(options.model, options.input_shapes, options.seed).examined
    refuse_unsupported(options.model, examined.unsupported)  # before a float model is quantised
    if examined.constant_outputs:
        raise ImportFailedError(
            f"output '{examined.constant_outputs[0]}' of '{options.model}' does not depend on its "
            "inputs; export the model without it"
        )
    decisions = decide(examined, accelerator)
    return tuple(
        each.fused.node for each in decisions
        if each.workload is None and each.accelerator_seconds is not None
    )  # fmt: skip


def _nothing(_: str) -> None:
    pass
