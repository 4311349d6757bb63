"""Pipeline that builds an artifact: a folder that a simulator, a board or a process executes.

- For an accelerator: read_model → integer_network → choose_schedules → link_artifact
- For a CPU: read_model → read_layers → choose_kernels → compile_library → faster_in_onnxruntime →
  write_library
- For several input sizes: read_sizes → the steps for a CPU, once per size → join_sizes →
  write_library
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from tilewright.core.errors import WorkloadError
from tilewright.models import make_explorer
from tilewright.networks import artifact
from tilewright.networks.artifact.library import compiles_kernels
from tilewright.networks.errors import (
    InaccurateError,
    InputError,
    NothingToOffload,
    UncompilableError,
)
from tilewright.search import LocalRunner
from tilewright.search.events import Event, Listener, ignore
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import CompilesKernels, capability, traits_of
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload
from tilewright.tuning.build_artifact import (
    BuiltArtifact,
    check,
    check_program,
    integer_network,
    link_artifact,
    noisiest_layers,
    read_model,
)
from tilewright.tuning.build_cpu_library import (
    check_library,
    compile_library,
    faster_in_onnxruntime,
    join_sizes,
    read_layers,
    read_sizes,
    run_in_onnxruntime,
    write_library,
)
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.fusion_interface import labels_of
from tilewright.tuning.output_dir import FUSION
from tilewright.tuning.schedule_lookup import pick_rules, pick_without_trials, read_picks

if TYPE_CHECKING:
    from tilewright.networks.artifact.library import CompiledFiles
    from tilewright.networks.compiled.layers import KernelLayer
    from tilewright.networks.integer.graph import IntegerGraph
    from tilewright.networks.network import Network

COMPILED_TOGETHER = 4
"""Number of workloads that are compiled at the same time. The target has one compiling process per
core."""


@dataclass(frozen=True)
class SchedulesFound(Event):
    """Event that is emitted while schedules are chosen in a build.

    Attributes:
        done: number of workloads that have a schedule so far.
        whole: number of all workloads.
    """

    done: int
    whole: int


def build_artifact(run: LocalRunner, options: BuildOptions) -> BuiltArtifact:
    """Build a network for a target, and write the artifact to `options.out`.

    Args:
        run: runner that executes the steps.
        options: options of the build.

    Returns:
        The manifest of the artifact, and warnings.

    Raises:
        ArtifactError: the artifact cannot be built.
        PickError: the given schedules cannot be used.
        WorkloadError: the target cannot run a workload.
        TilewrightError: the model cannot be read or quantised.
    """
    check(options)
    target = make_target(options.target)
    if capability(target, CompilesKernels) is not None:
        return build_library(run, options, target)
    check_program(options, target)
    return build_program(run, options, target, run(read_model, options))


def build_program(
    run: LocalRunner, options: BuildOptions, target: Target, network: Network,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> BuiltArtifact:  # fmt: skip
    """Build a network for an accelerator, and write the artifact to `options.out`.

    Parts that the accelerator or TVM cannot compute are handled as follows:

    - If TVM cannot compile an operator for the CPU, the steps are repeated, and onnxruntime runs
      this operator. If TVM fails without naming a further operator, the error is raised.
    - If no layer can run on the accelerator, onnxruntime runs the whole network. With the option
      `bare`, the error is raised instead.
    - If the outputs exceed the default tolerance, the build is repeated with the noisiest layers in
      floating point on the CPU. The error is raised instead if the user gave a tolerance, or if the
      model was already quantised.

    Args:
        run: runner that executes the steps.
        options: options of the build.
        target: the accelerator.
        network: the network.
        refused: operators that TVM cannot compile for the CPU: the reason, by name of the operator.

    Returns:
        The manifest of the artifact, and warnings.

    Raises the errors of `build_artifact`.
    """
    try:
        made = run(integer_network, options, target, network, refused)
    except NothingToOffload as error:
        if options.bare:
            raise
        files, warnings = run(run_in_onnxruntime, options, target, network, str(error))
        return BuiltArtifact(run(write_library, options, files), warnings)
    artifact.check_possible(made.graph, target, options.out, bare=options.bare)
    picks = run(choose_schedules, options, target, made.graph, run.emit)
    try:
        manifest = run(link_artifact, options, target, made, picks)
    except UncompilableError as error:
        failed = {name: str(error) for name in error.operators if name not in refused}
        if not failed:
            raise
        return build_program(run, options, target, network, {**refused, **failed})
    except InaccurateError as error:
        kept = noisiest_layers(options, made)
        if not kept:
            raise
        message = (
            f"int8 was too inaccurate for {', '.join(kept)}, which the CPU now computes in "
            f"floating point: {error}"
        )
        options = options.model_copy(update={"keep_float": (*options.keep_float, *kept)})
        built = build_program(run, options, target, network, refused)
        return replace(built, warnings=(message.partition(";")[0], *built.warnings))
    return BuiltArtifact(manifest, made.warnings)


def build_library(run: LocalRunner, options: BuildOptions, target: Target) -> BuiltArtifact:
    """Compile a network for a CPU, and write the library to `options.out`.

    Args:
        run: runner that executes the steps.
        options: options of the build. `options.sizes` requests one library per input size.
        target: the CPU target.

    Returns:
        The manifest of the artifact, and warnings.

    Raises:
        ArtifactError: an option does not apply to a CPU, or the network cannot be compiled.
        PickError: the given schedules cannot be used.
        TilewrightError: the model cannot be read.
    """
    check_library(options, target)
    if not options.sizes:
        made, warnings = compile_one(run, options, target, run(read_model, options))
        return BuiltArtifact(run(write_library, options, made), warnings)
    model = run(read_sizes, options)
    library = []
    for at in model.wanted:
        sized = options.model_copy(update={"input_shapes": at.shapes})
        library.append(compile_one(run, sized, target, run(read_model, sized)))
    joined = run(join_sizes, options, target, model, [made for made, _ in library])
    said = dict.fromkeys(warning for _, warnings in library for warning in warnings)
    return BuiltArtifact(run(write_library, options, joined), tuple(said))


def compile_one(
    run: LocalRunner, options: BuildOptions, target: Target, model: Network,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> tuple[CompiledFiles, tuple[str, ...]]:  # fmt: skip
    """Compile a library for a network with static shapes.

    Parts that cannot be compiled well are handled as follows:

    - If TVM cannot compile an operator, the steps are repeated, and onnxruntime runs this operator.
      If TVM fails without naming a further operator, onnxruntime runs the whole network.
    - onnxruntime runs the whole network if the target has no kernel for any layer, or if no layer
      has a schedule.
    - If the compiled network rejects the inputs, onnxruntime runs the whole network. With
      calibration samples, the error is raised instead.
    - If the options give neither schedules nor sizes, the compiled library is compared with
      onnxruntime. If the library is clearly slower, onnxruntime runs the whole network.
    - If the outputs are too inaccurate in the number format that the target chose, the layers are
      compiled in float32. The error is raised instead if the options give schedules, or if the
      target has no float32 variant (see `CompilesKernels.in_float32`).

    Args:
        run: runner that executes the steps.
        options: options of the build.
        target: the CPU target.
        model: the network.
        refused: operators that TVM cannot compile: the reason, by name of the operator.

    Returns:
        The compiled files and warnings.

    Raises the errors of `build_library`.
    """
    network = run(read_layers, target, model, refused)
    if not network.layers:
        return run(run_in_onnxruntime, options, target, network.network, network.why)
    picks, warnings = run(choose_kernels, options, target, network.layers, run.emit)
    if not picks:
        return run(run_in_onnxruntime, options, target, network.network, warnings[0])
    try:
        made = run(compile_library, options, target, network, picks)
        chosen = options.sizes or options.schedules is not None
        why = "" if chosen else run(faster_in_onnxruntime, network.network, made)
        if not why:
            return made, warnings
        return run(run_in_onnxruntime, options, target, network.network, why)
    except UncompilableError as error:
        failed = {name: str(error) for name in error.operators if name not in refused}
        if not failed:
            return run(run_in_onnxruntime, options, target, network.network, str(error))
        return compile_one(run, options, target, model, {**refused, **failed})
    except InputError as error:
        if options.calibration is not None:
            raise
        return run(run_in_onnxruntime, options, target, network.network, str(error))
    except InaccurateError as error:
        compiles = compiles_kernels(target)
        longer = compiles.in_float32() if options.schedules is None else None
        if longer is None:
            raise
        message = (
            f"its layers compute in float32, because in {traits_of(target).float_type} {error}"
        )
    made, warnings = compile_one(run, options, longer, model, refused)
    return made, (message.partition(";")[0], *warnings)


def choose_schedules(
    options: BuildOptions, target: Target, graph: IntegerGraph, emit: Listener
) -> list[Pick]:
    """Choose a schedule for each layer of a network on an accelerator.

    The schedules come from the output directory of a tuning run or, without one, from a few trials
    per workload (`tuned_picks`).

    Args:
        options: options of the build, which name the directory or the number of trials.
        target: the accelerator.
        graph: the integer network.
        emit: function that receives the progress.

    Returns:
        One schedule per layer, in the order of the layers.

    Raises:
        PickError: the directory does not contain the schedules.
        WorkloadError: a workload has no schedule that runs.
    """
    workloads = artifact.canonical_workloads(graph)
    if options.schedules is None:
        return tuned_picks(workloads, target, options.trials, options.seed, emit)
    fused = labels_of(options.schedules) is not None
    return read_picks(options.schedules / FUSION if fused else options.schedules, workloads, target)


def choose_kernels(
    options: BuildOptions, target: Target, layers: Sequence[KernelLayer], emit: Listener
) -> tuple[dict[Workload, Pick], tuple[str, ...]]:
    """Choose schedules for the workloads of a CPU library.

    TVM compiles a workload by its own rules if none of the target's schedules runs. An output
    directory stores the schedule of a layer without its activation. The same schedule also applies
    to the layer with the activation, because both have the same schedule space.

    Args:
        options: options of the build, which name an output directory or the number of trials.
        target: the CPU target.
        layers: layers for which the target has kernels.
        emit: function that receives the progress.

    Returns:
        Schedules by workload, and warnings about workloads without a schedule.

    Raises:
        PickError: the directory does not contain the schedules.
    """
    workloads = [layer.workload for layer in layers]
    if options.schedules is not None:
        tuned = [workload.without_activation for workload in workloads]
        picks = read_picks(options.schedules, tuned, target)
        return dict(zip(workloads, picks, strict=True)), ()
    picks_by_workload = {} if options.trials else pick_rules(workloads, target)
    warnings = []
    whole = len(set(workloads))
    others = [
        workload for workload in dict.fromkeys(workloads) if workload not in picks_by_workload
    ]

    def pick(workload: Workload) -> Pick | WorkloadError:
        try:
            return tuned_picks([workload], target, options.trials, options.seed)[0]
        except WorkloadError as error:
            return error

    # With trials, the batch of one workload is compiled on all cores. Without trials, several
    # workloads are compiled at the same time, and timing waits until no compiler runs.
    with ThreadPoolExecutor(1 if options.trials else COMPILED_TOGETHER) as pool:
        for done, (workload, picked) in enumerate(
            zip(others, pool.map(pick, others), strict=True), whole - len(others)
        ):
            emit(SchedulesFound(done + 1, whole))
            if isinstance(picked, WorkloadError):
                warnings.append(
                    f"{picked}; until then TVM compiles this workload without a tuned schedule"
                )
            else:
                picks_by_workload[workload] = picked
    return picks_by_workload, tuple(warnings)


def tuned_picks(
    workloads: Sequence[Workload],
    target: Target,
    trials: int,
    seed: int = 0,
    emit: Listener = ignore,
) -> list[Pick]:
    """Tune each workload for a few trials, and return its best schedule.

    The schedules that need no trial also compete (`pick_without_trials`). With `trials=0`, they are
    the only candidates.

    Args:
        workloads: the workloads; they may repeat.
        target: the target.
        trials: number of trials per workload; 0 for none.
        seed: seed of the tuner.
        emit: function that receives the progress.

    Returns:
        One schedule per workload, in order.

    Raises:
        WorkloadError: a workload has no schedule that runs.
    """
    different = list(dict.fromkeys(workloads))
    picks: dict[Workload, Pick] = {}
    for done, workload in enumerate(different):
        emit(SchedulesFound(done, len(different)))
        tried = _tune_briefly(workload, target, trials, seed) if trials else None
        picks[workload] = pick_without_trials(workload, target, seed, tried)
    emit(SchedulesFound(len(different), len(different)))
    return [picks[workload] for workload in workloads]


def _tune_briefly(
    workload: Workload, target: Target, trials: int, seed: int
) -> tuple[float, Pick] | None:
    """Tune a workload for a few trials, without a trial store.

    Args:
        workload: the workload.
        target: the target.
        trials: number of trials.
        seed: seed of the tuner.

    Returns:
        Cost and schedule of the best trial; None if no trial is valid.
    """
    # Imported here, because importing pandas and others takes as long as a small build.
    from tilewright.flows.tuning import tune

    # The programs of a round are compiled on all cores, so the tuner's usual rounds of two trials
    # would leave most of them idle.
    batch = min(trials, 16)
    tuner = make_explorer("default", {"batch": batch})
    done = list(tune(target, workload, tuner, trials=trials, batch=batch, seed=seed))
    if not done or done[-1].best_config is None or done[-1].best is None:
        return None
    config = tuple(int(index) for index in done[-1].best_config)
    return done[-1].best.cost, Pick(target.space(workload).name, config)
