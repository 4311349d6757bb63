"""Building: from a model to one folder that a simulator, a board or a process executes.

for an accelerator   integer_network → tuned_picks → artifact.build
for a processor      kernel_layers → tuned_picks → compiled.build
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tilewright import networks
from tilewright.core.errors import WorkloadError
from tilewright.core.files import Json
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.networks import artifact
from tilewright.networks.artifact import ArtifactError
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import CompilesKernels, capability
from tilewright.targets.registry import kind_of, make_target
from tilewright.targets.workload import Workload
from tilewright.tuning.build_artifact import BuiltArtifact, check, integer_network
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.fusion_file import labels_of
from tilewright.tuning.output_dir import FUSION
from tilewright.tuning.schedule_lookup import pick_without_trials, read_picks

Stage = Callable[[str], None]
"""Told what begins."""
Progress = Callable[[int, int], None]
"""Told how many of how many workloads are done."""


def build_artifact(
    options: BuildOptions, stage: Stage | None = None, progress: Progress | None = None
) -> BuiltArtifact:
    """Build a network into `options.out`. `stage` is told what begins, `progress` how many of the
    workloads have a schedule.

    Raises `ArtifactError`, `PickError`, what reading and quantising the model raise, and
    `WorkloadError` for what the target cannot run.
    """
    say = stage or _nothing
    check(options)
    target = make_target(options.target)
    if capability(target, CompilesKernels) is not None:
        return BuiltArtifact(*build_library(options, target, say, progress))
    say("quantising")
    made = integer_network(options, target)
    graph = made.graph
    artifact.check_possible(graph, target, options.out, bare=options.bare)
    say("choosing schedules")
    workloads = artifact.canonical_workloads(graph)
    if options.schedules is not None:
        fused = labels_of(options.schedules) is not None
        picks = read_picks(
            options.schedules / FUSION if fused else options.schedules, workloads, target
        )
    else:
        picks = tuned_picks(workloads, target, options.trials, options.seed, progress)
    say("linking")
    manifest = artifact.build(
        graph, picks, target, kind_of(options.target)[0].name, options.out,
        notes={"quantisation": made.quantisation}, bare=options.bare,
        check=artifact.check_of(made.source, made.samples), tolerance=made.tolerance,
    )  # fmt: skip
    return BuiltArtifact(manifest, made.warnings)


def build_library(
    options: BuildOptions,
    target: Target,
    stage: Callable[[str], None],
    progress: Progress | None = None,
) -> tuple[Mapping[str, Json], tuple[str, ...]]:
    """Compile a network into `options.out`; the folder's manifest, and doubts about it. `stage` is
    told what begins, `progress` how many of the workloads have a schedule.

    Raises `ArtifactError` for what is asked of integers and where nothing of the network has a
    kernel, `PickError`, what reading the model raises, and as `networks.artifact.compiled.build`.
    """
    given = (options.calibration is not None, bool(options.keep_float), options.bare)
    for name, is_given in zip(("--calibration", "--keep-float", "--bare"), given, strict=True):
        if is_given:
            raise ArtifactError(
                f"{name} is about networks in int8, and {target.name} computes in float; leave it "
                "out"
            )
    from tilewright.networks.artifact.compiled import build
    from tilewright.networks.compiled.layers import kernel_layers
    from tilewright.networks.float32 import is_quantised

    stage("reading")
    network = networks.load(options.model, options.input_shapes or None, options.seed)
    whole = network.whole
    if any(is_quantised(call) for call in network.examined.found.calls):
        raise ArtifactError(
            f"{options.model} is quantised, and a library for {target.name} would compute it in "
            "float32: build it for a VTA, or take the float model ('tilewright tune' tunes "
            "quantised layers one by one)"
        )
    layers = kernel_layers(whole.flat, target.space)
    if not layers:
        raise ArtifactError(
            f"no layer of {options.model} has a kernel on {target.name}, there is nothing to "
            "build; 'tilewright inspect' says why"
        )
    stage("choosing schedules")
    workloads = [layer.workload for layer in layers]
    warnings: tuple[str, ...] = ()
    if options.schedules is not None:
        picks = dict(zip(workloads, read_picks(options.schedules, workloads, target), strict=True))
    else:
        picks, warnings = _tuned(workloads, target, options, progress)
    stage("compiling")
    macs = sum(network.examined.found.macs.values())
    manifest = build(
        whole, [layer for layer in layers if layer.workload in picks], picks, target,
        kind_of(options.target)[0].name, options.out, name=Path(options.model).stem,
        total_macs=macs,
    )  # fmt: skip
    return manifest, warnings


def _tuned(
    workloads: Sequence[Workload], target: Target, options: BuildOptions, progress: Progress | None
) -> tuple[dict[Workload, Pick], tuple[str, ...]]:
    """A schedule of each that any runs of, and words about the others, which TVM compiles."""
    picks: dict[Workload, Pick] = {}
    warnings = []
    different = list(dict.fromkeys(workloads))
    for done, workload in enumerate(different):
        if progress is not None:
            progress(done, len(different))
        try:
            (picks[workload],) = tuned_picks([workload], target, options.trials, options.seed)
        except WorkloadError as error:
            warnings.append(f"{error}; until then TVM compiles it without a schedule")
    if not picks:
        raise ArtifactError(f"no kernel of {options.model} runs: {warnings[0]}")
    return picks, tuple(warnings)


def tuned_picks(
    workloads: Sequence[Workload],
    target: Target,
    trials: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Pick]:
    """The best of so many trials of each workload, or what costs no trial, where that is faster.
    Raises `WorkloadError` for a workload without any schedule that runs."""
    different = list(dict.fromkeys(workloads))
    found: dict[Workload, Pick] = {}
    for done, workload in enumerate(different):
        if progress is not None:
            progress(done, len(different))
        tried = _tried(workload, target, trials, seed) if trials else None
        found[workload] = pick_without_trials(workload, target, seed, tried)
    if progress is not None:
        progress(len(different), len(different))
    return [found[workload] for workload in workloads]


def _tried(workload: Workload, target: Target, trials: int, seed: int) -> tuple[float, Pick] | None:
    """The best of so many trials, with its cost; None if none is valid."""
    done = list(
        tune(
            target, workload, make_explorer("default"), trials=trials, batch=min(trials, 16),
            seed=seed,
        )
    )  # fmt: skip
    if not done or done[-1].best_config is None or done[-1].best is None:
        return None
    config = tuple(int(index) for index in done[-1].best_config)
    return done[-1].best.cost, Pick(target.space(workload).name, config)


def _nothing(_: str) -> None:
    pass
