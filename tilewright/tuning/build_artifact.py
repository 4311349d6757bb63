"""Implements the first steps of a build: checks before any work, and the network in integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright.core.files import Json
from tilewright.core.sanitize import printable
from tilewright.networks import artifact, load
from tilewright.networks.accelerator import Accelerator
from tilewright.networks.artifact import ArtifactError
from tilewright.networks.artifact.accuracy import OF_FLOAT, OF_QUANTISED
from tilewright.networks.errors import ImportFailedError, ModelFileError
from tilewright.networks.onnx_reference import reference_model
from tilewright.networks.onnx_source import refuse_unsupported
from tilewright.networks.pooling import pooled
from tilewright.networks.quantise import is_quantised, model_with_weights, samples_for
from tilewright.networks.report import build as model_report
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Builds, capability
from tilewright.targets.registry import check_target, kind_of
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.fusion_file import labels_of
from tilewright.tuning.output_dir import FUSION
from tilewright.tuning.preflight import check_source
from tilewright.tuning.schedule_lookup import PickError, pool_rule

if TYPE_CHECKING:
    import onnx

    from tilewright.networks.accelerator import Accelerator
    from tilewright.networks.integer.graph import IntegerGraph
    from tilewright.networks.integer.pooling import PoolRule


@dataclass(frozen=True, eq=False)
class BuiltArtifact:
    """What was written: its manifest, and doubts about it."""

    manifest: Mapping[str, Json]
    warnings: tuple[str, ...]


def check(options: BuildOptions) -> None:
    """What can be told before any work. Raises `ArtifactError` for a folder with other files,
    `ModelFileError` and `PickError` for what is not there, and as `check_target`."""
    check_target(options.target)
    check_source(options.model)
    problem = artifact.in_the_way(options.out)
    if problem:
        raise ArtifactError(
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
    its outputs are judged: the model it came from, samples, and the bound on the relative error.
    `cpu_seconds` estimates what its operators take on the CPU beside the target, by name."""

    graph: IntegerGraph
    quantisation: Json
    warnings: tuple[str, ...]
    source: onnx.ModelProto
    samples: Sequence[Mapping[str, NDArray[Any]]]
    tolerance: float
    cpu_seconds: Mapping[str, float]


def integer_network(
    options: BuildOptions, target: Target, *, apart: bool = False
) -> IntegerNetwork:
    """The network in integers for a target. What runs together is as `options.schedules` says, or
    nothing that may be `apart`. Raises `ArtifactError` for a target that runs no programs of ours,
    `PickError` for schedules of what is fused otherwise, `ImportFailedError` for an output that no
    input changes."""
    if capability(target, Builds) is None:
        raise ArtifactError(
            f"{target.name} runs no programs of ours, so nothing is built for it; choose a VTA"
        )
    from tilewright.networks.integer.network import in_integers

    accelerator = Accelerator.of(target, "per-channel" if options.per_channel else "full")
    allow_code = options.allow_code
    model = reference_model(model_with_weights(options.model, options.seed, allow_code=allow_code))
    if options.sizes:
        raise ArtifactError(
            f"--sizes makes a library for a processor, and streams of {target.name} have one "
            "shape; give --input-shape instead"
        )
    network = load(options.model, options.input_shapes, options.seed, allow_code=allow_code)
    refuse_unsupported(options.model, network.examined.unsupported)  # before it is quantised
    if network.examined.constant_outputs:
        raise ImportFailedError(
            f"output '{network.examined.constant_outputs[0]}' of '{options.model}' does not depend "
            "on its inputs; export the model without it"
        )
    decisions = network.decisions_on(accelerator)
    samples = samples_for(model, options.calibration, options.input_shapes)
    labels = None if apart or options.schedules is None else labels_of(options.schedules)
    pool = None
    if not (apart or labels is not None):
        pool = _pool_rule(options, target, accelerator)
    made = in_integers(
        model, accelerator, decisions, name=Path(options.model).stem,
        input_shapes=options.input_shapes, keep_float=options.keep_float, samples=samples,
        per_channel=options.per_channel, exact=options.exact, pool=pool, apart=pool is None,
    )  # fmt: skip
    graph = made.graph
    if labels is not None and options.schedules is not None:
        graph = _labelled(graph, labels, options.schedules / FUSION)
    tolerance = options.tolerance
    if tolerance is None:
        tolerance = OF_QUANTISED if is_quantised(model) else OF_FLOAT
    operators = model_report(network.examined, accelerator, decisions).operators
    return IntegerNetwork(
        graph, dict(made.quantisation), made.warnings, model, samples.judging, tolerance,
        {each.name: each.cpu_seconds for each in operators},
    )  # fmt: skip


def link_artifact(
    options: BuildOptions, target: Target, made: IntegerNetwork, picks: Sequence[Pick]
) -> Mapping[str, Json]:
    """Write the artifact of a network with a schedule a layer; its manifest. Raises `ArtifactError`
    where its outputs are further off than the bound, `WorkloadError` and `OSError`."""
    return artifact.build(
        made.graph, picks, target, kind_of(options.target)[0].name, options.out,
        notes={"quantisation": made.quantisation}, bare=options.bare,
        check=artifact.check_of(made.source, made.samples), tolerance=made.tolerance,
        cpu_seconds=made.cpu_seconds,
    )  # fmt: skip


def _labelled(graph: IntegerGraph, labels: Mapping[str, bool], path: Path) -> IntegerGraph:
    """The network with what a tuned folder says is fused. Raises `PickError` where that may not
    be."""
    from tilewright.networks.fusion import choices, fused

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
    if options.schedules is not None:
        return pool_rule(options.schedules, target)
    return lambda convolution, pool: pooled(convolution, pool, accelerator)
