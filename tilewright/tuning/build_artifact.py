"""First steps of a build: checks before any work, and quantisation of the network to integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright.core.files import Json, as_list, as_number, as_object, as_text
from tilewright.core.user_text import printable
from tilewright.networks import artifact, load
from tilewright.networks.artifact import ArtifactError
from tilewright.networks.errors import ModelFileError, NothingToOffload, NothingToQuantise
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.pooling import pool_where_faster
from tilewright.networks.offloading.report import build_report as model_report
from tilewright.networks.partition.region_models import REGION_NAME
from tilewright.networks.quantisation import is_quantised
from tilewright.networks.tolerances import program_tolerance
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Builds, capability
from tilewright.targets.registry import check_target, kind_of
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.fusion_interface import labels_of
from tilewright.tuning.output_dir import FUSION
from tilewright.tuning.preflight import check_source
from tilewright.tuning.schedule_lookup import PickError, pool_rule

if TYPE_CHECKING:
    import onnx

    from tilewright.networks.integer.graph import IntegerGraph
    from tilewright.networks.network import Network
    from tilewright.networks.offloading.accelerator import Accelerator
    from tilewright.networks.offloading.pooling import PoolRule
    from tilewright.networks.partition.region_models import LastRegions


@dataclass(frozen=True, eq=False)
class BuiltArtifact:
    """An artifact that was written to disk.

    Attributes:
        manifest: contents of its manifest.
        warnings: warnings for the user.
    """

    manifest: Mapping[str, Json]
    warnings: tuple[str, ...]


def check(options: BuildOptions) -> None:
    """Check the options of a build as far as possible before any work starts.

    Args:
        options: options of the build.

    Raises:
        ArtifactError: the output folder contains other files.
        ModelFileError: the model or the calibration samples do not exist.
        PickError: the folder with schedules does not exist.
        TilewrightError: the target is unknown or cannot be built.
    """
    check_target(options.target)
    check_source(options.model)
    problem = artifact.in_the_way(options.out)
    if problem:
        raise ArtifactError(
            f"cannot write to {options.out}: {problem}; choose another folder with --out"
        )
    if options.calibration is not None and not options.calibration.exists():
        raise ModelFileError(
            f"the calibration samples {options.calibration} do not exist; give an NPZ file or "
            "a folder of NPZ files"
        )
    if options.schedules is not None and not options.schedules.exists():
        raise PickError(
            f"the folder {options.schedules} does not exist; give the output directory of "
            "'tilewright tune', or leave out --schedules"
        )


def check_program(options: BuildOptions, target: Target) -> None:
    """Check that the target can run whole programs and that no CPU-only option is set.

    Args:
        options: options of the build.
        target: the accelerator.

    Raises:
        ArtifactError: the target cannot run whole programs, or an option applies only to libraries
            for a CPU.
    """
    if options.ignore_nan:
        raise ArtifactError(
            f"--ignore-nan only applies to CPU libraries, and {target.name} computes with "
            "integers; leave it out"
        )
    if capability(target, Builds) is None:
        raise ArtifactError(
            f"programs of {target.name} cannot be executed here, so nothing can be built for "
            "it; choose a VTA or a Gemmini"
        )
    if options.sizes:
        raise ArtifactError(
            f"--sizes is only for CPU libraries, because programs for {target.name} have "
            "fixed shapes; use --input-shape instead"
        )


@dataclass(frozen=True, eq=False)
class IntegerNetwork:
    """A quantised network that is ready to be built.

    Attributes:
        graph: the network with integer operations.
        quantisation: description of the quantisation, for the manifest.
        warnings: warnings for the user.
        source: original model, whose outputs are the reference for the accuracy.
        samples: inputs with which the accuracy is measured, as arrays by name of the input.
        tolerance: largest accepted relative error of the outputs.
        cpu_seconds: estimated CPU time in seconds of operators that do not run on the target, by
            name.
        last: regions at the end of the network that onnxruntime runs.
    """

    graph: IntegerGraph
    quantisation: Json
    warnings: tuple[str, ...]
    source: onnx.ModelProto
    samples: Sequence[Mapping[str, NDArray[Any]]]
    tolerance: float
    cpu_seconds: Mapping[str, float]
    last: LastRegions | None = None


def read_model(options: BuildOptions) -> Network:
    """Read a network with its weights, and normalise it for all further steps.

    Args:
        options: options of the build.

    Raises:
        TilewrightError: the model cannot be read.
    """
    network = load(
        options.model, options.input_shapes, options.seed, calibration=options.calibration,
        allow_code=options.allow_code,
    )  # fmt: skip
    network.prepare()
    return network


def integer_network(
    options: BuildOptions, target: Target, network: Network,
    refused: Mapping[str, str] = MappingProxyType({}), *, apart: bool = False,
) -> IntegerNetwork:  # fmt: skip
    """Quantise a network to integers for a target.

    Args:
        options: options of the build. If `options.schedules` is given, operators are fused as in
            the tuned folder.
        target: the target.
        network: the network.
        refused: operators that TVM cannot compile and that onnxruntime runs instead: reasons by
            operator name.
        apart: whether to leave all optional fusions out.

    Raises:
        ArtifactError: the target cannot run whole programs.
        PickError: the schedules belong to a network that is fused differently.
        NothingToOffload: no layer of the network runs on the target.
    """
    from tilewright.networks.integer_network import in_integers

    accelerator = Accelerator.for_target(target, "per-channel" if options.per_channel else "full")
    network = network.refusing(refused)
    # The decisions come before `split`, so that `split` need not import the model.
    decisions = network.decisions_on(accelerator)
    split = network.split()
    if split.compiled is None:
        raise NothingToOffload(why_not_compiled(network))
    model, last = split.compiled.weighted, split.last
    samples = split.samples(options.calibration)
    labels = None if apart or options.schedules is None else labels_of(options.schedules)
    pool = None
    if not (apart or labels is not None):
        pool = _pool_rule(options, target, accelerator)
    try:
        made = in_integers(
            split.compiled.fixed, accelerator, decisions, samples=samples,
            calls=None if refused else network.examined.found.calls,
            name=Path(options.model).stem, keep_float=options.keep_float,
            per_channel=options.per_channel, exact=options.exact, pool=pool, apart=pool is None,
            refused=refused,
        )  # fmt: skip
    except NothingToQuantise as error:
        raise NothingToOffload(str(error)) from error
    if not made.graph.layers:
        left = next(iter(made.graph.left.items()), None)
        why = (
            "the network contains no supported layer" if left is None else f"'{left[0]}': {left[1]}"
        )
        raise NothingToOffload(f"no layer runs on {target.name}: {why}")
    graph = made.graph
    if labels is not None and options.schedules is not None:
        graph = _labelled(graph, labels, options.schedules / FUSION)
    tolerance = options.tolerance
    if tolerance is None:
        tolerance = program_tolerance(quantised=is_quantised(model))
    operators = model_report(network.examined, accelerator, decisions).operators
    return IntegerNetwork(
        graph, dict(made.quantisation), made.warnings, model, samples.judging_samples, tolerance,
        _seconds(graph, {operator.name: operator.cpu_seconds for operator in operators}), last,
    )  # fmt: skip


def _seconds(graph: IntegerGraph, of_operators: Mapping[str, float]) -> Mapping[str, float]:
    """Return the estimated CPU time of operators and of regions, in seconds by name.

    A region is a part of the network that onnxruntime runs as a whole. Its time is the sum of its
    operators' times.

    Args:
        graph: the network with integer operations.
        of_operators: estimated seconds by operator name.
    """
    of_regions = {
        REGION_NAME.format(number): sum(of_operators.get(name, 0.0) for name, _ in region.operators)
        for number, region in enumerate(graph.regions)
    }
    return {**of_operators, **of_regions}


def link_artifact(
    options: BuildOptions, target: Target, made: IntegerNetwork, picks: Sequence[Pick]
) -> Mapping[str, Json]:
    """Write the artifact of a network with one schedule per layer.

    The outputs of the artifact are compared with those of the original model.

    Args:
        options: options of the build.
        target: the target.
        made: the quantised network.
        picks: schedules, one per layer in the order of the network.

    Returns:
        The manifest of the artifact.

    Raises:
        ArtifactError: the error of the outputs exceeds the tolerance.
        WorkloadError: a schedule does not compile.
        OSError: a file cannot be written.
    """
    return artifact.build(
        made.graph, picks, target, kind_of(options.target)[0].name, options.out,
        notes={"quantisation": made.quantisation}, bare=options.bare,
        check=artifact.check_of(made.source, made.samples), tolerance=made.tolerance,
        cpu_seconds=made.cpu_seconds, last=made.last,
    )  # fmt: skip


def noisiest_layers(options: BuildOptions, made: IntegerNetwork) -> tuple[str, ...]:
    """Choose layers to keep in floating point, after a build whose outputs were too inaccurate.

    The layers with the highest quantisation noise are chosen. Their number equals the number of
    layers that are already kept in floating point, but is at least one.

    Args:
        options: options of the build whose outputs exceeded the tolerance.
        made: the quantised network of that build.

    Returns:
        Names of layers; empty if the model was already quantised or if the user gave a tolerance.
    """
    layers = as_list(as_object(made.quantisation).get("layers", []))
    noise = {
        as_text(as_list(row["operators"])[0]): as_number(row["decibels"])
        for row in map(as_object, layers)
        if row["decibels"] is not None
    }
    if options.tolerance is not None:
        return ()
    return tuple(sorted(noise, key=lambda name: noise[name])[: max(1, len(options.keep_float))])


def why_not_compiled(network: Network) -> str:
    """Explain why no part of a network can be compiled.

    Args:
        network: the network.

    Returns:
        The first unsupported operator with the reason, or a note that there is nothing to compile.
    """
    causes = [cause for region in network.examined.regions for cause in region.causes]
    if not causes:
        return "it has no convolution, matrix product or pooling layer"
    return f"'{causes[0].name}' ({causes[0].operator}): {causes[0].reason}"


def _labelled(graph: IntegerGraph, labels: Mapping[str, bool], path: Path) -> IntegerGraph:
    """Return the network with exactly those optional fusions that are marked in a tuned folder.

    Args:
        graph: the network with integer operations.
        labels: for each optional fusion, by name, whether it is made. Fusions without a label are
            not made.
        path: file of the tuned folder, for error messages.

    Raises:
        PickError: the network does not offer one of these fusions.
    """
    from tilewright.networks.fusion import apply_labels, choices

    offered = [str(choice) for choice in choices(graph).offered]
    unknown = [name for name, label in labels.items() if label and name not in offered]
    if unknown:
        raise PickError(
            f"{path} fuses '{printable(unknown[0])}', which this network does not contain "
            "when it is quantised with these options; tune it again, or build it with the "
            "options that it was tuned with"
        )
    return apply_labels(graph, [labels.get(name, False) for name in offered])


def _pool_rule(options: BuildOptions, target: Target, accelerator: Accelerator) -> PoolRule:
    """Return the rule that decides which max-pools are merged into the preceding convolution.

    If the build uses the schedules of a tuned folder, the same pools are merged as there.
    Otherwise, a pool is merged where this is faster, as in tuning.

    Args:
        options: options of the build.
        target: the target.
        accelerator: properties of the target that decide which merges are faster.
    """
    if options.schedules is not None:
        return pool_rule(options.schedules, target)
    return lambda convolution, pool: pool_where_faster(convolution, pool, accelerator)
