"""From a float model to a library for a processor: layers, schedules, one folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from networks.artefact import ArtefactError
from targets.base import Target
from targets.files import Json
from targets.registry import kind_of
from tuning.picks import Progress, read_picks, tuned_picks

if TYPE_CHECKING:
    from tuning.building import BuildOptions


def build_library(
    options: BuildOptions,
    target: Target,
    stage: Callable[[str], None],
    progress: Progress | None = None,
) -> Mapping[str, Json]:
    """Compile a network into `options.out` and return the folder's manifest. `stage` is told what
    begins, `progress` how many of the workloads have a schedule.

    Raises `ArtefactError` for what is asked of integers and where nothing of the network has a
    kernel, `PickError`, what reading the model raises, and as `networks.artefact.compiled.build`.
    """
    given = (options.calibration is not None, bool(options.keep_float), options.bare)
    for name, is_given in zip(("--calibration", "--keep-float", "--bare"), given, strict=True):
        if is_given:
            raise ArtefactError(
                f"{name} is about networks in int8, and {target.name} computes in float; leave it "
                "out"
            )
    import networks
    from networks.artefact.compiled import build
    from networks.compiled.layers import kernel_layers

    stage("reading")
    network = networks.load(options.model, options.input_shapes or None, options.seed)
    whole = network.whole
    layers = kernel_layers(whole.flat, target.space)
    if not layers:
        raise ArtefactError(
            f"no layer of {options.model} has a kernel on {target.name}, there is nothing to "
            "build; 'tilewright inspect' says why"
        )
    stage("choosing schedules")
    workloads = [layer.workload for layer in layers]
    if options.schedules is not None:
        picks = read_picks(options.schedules, workloads, target)
    else:
        picks = tuned_picks(workloads, target, options.trials, options.seed, progress)
    stage("compiling")
    macs = sum(network.examined.found.macs.values())
    return build(
        whole, layers, picks, target, kind_of(options.target)[0].name, options.out,
        name=Path(options.model).stem, total_macs=macs,
    )  # fmt: skip
