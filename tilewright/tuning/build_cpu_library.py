"""From a float model to a library for a processor: layers, schedules, one folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tilewright.core.errors import WorkloadError
from tilewright.core.files import Json
from tilewright.networks.artifact import ArtifactError
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.registry import kind_of
from tilewright.targets.workload import Workload
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.schedule_lookup import Progress, read_picks, tuned_picks


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
    from tilewright import networks
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
