"""Steps of compiling a network to a library for a CPU. `flows.build` calls them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json, as_text
from tilewright.networks.artifact import ArtifactError
from tilewright.networks.artifact.accuracy import (
    SAMPLES,
    Check,
    accuracy,
    refuse_inaccurate,
)
from tilewright.networks.artifact.library import (
    CompiledArtifact,
    CompiledFiles,
    compile_files,
    region_files,
)
from tilewright.networks.artifact.library_check import to_float16
from tilewright.networks.artifact.manifest import write_folder
from tilewright.networks.artifact.sized_library import join_libraries
from tilewright.networks.epilogues import is_quantised_call
from tilewright.networks.onnx.files import read_model_file, without_weights
from tilewright.networks.onnx.neutral_padding import padding_obstacles
from tilewright.networks.onnx.static_shapes import SizedShapes, named_shapes, shapes_at
from tilewright.networks.onnx.to_qdq import to_qdq
from tilewright.networks.partition.region_session import RegionSession
from tilewright.networks.quantisation.samples import Input, read_samples
from tilewright.networks.tolerances import OF_FLOAT32, library_tolerance
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import traits_of
from tilewright.targets.layer import NamedShape
from tilewright.targets.registry import kind_of
from tilewright.targets.workload import Workload
from tilewright.tuning.build_artifact import why_not_compiled
from tilewright.tuning.build_options import BuildOptions

if TYPE_CHECKING:
    from tilewright.networks.compiled.layers import KernelLayer
    from tilewright.networks.imported_model import Whole
    from tilewright.networks.network import Network, SplitNetwork
    from tilewright.networks.partition.region_models import LastRegions


def check_library(options: BuildOptions, target: Target) -> None:
    """Check that no option is set that applies only to a build for an accelerator.

    Args:
        options: options of the build.
        target: the CPU target.

    Raises:
        ArtifactError: such an option is set.
    """
    given = (bool(options.keep_float), options.bare)
    for name, is_given in zip(("--keep-float", "--bare"), given, strict=True):
        if is_given:
            raise ArtifactError(
                f"{name} is only for int8 networks, but {target.name} computes in floating "
                "point; leave it out"
            )


MANY_MACS = 100_000
"""Number of multiply-accumulates from which an operator without a kernel runs in onnxruntime.

TVM's own code does about one multiply-accumulate per nanosecond, and a call of onnxruntime takes
about 10 µs.
"""
WORTH_IT = 1.05
"""Smallest ratio of the compiled network's inference time to that of onnxruntime at which
onnxruntime runs the whole network."""
ROUNDS, MOST_SECONDS, LEAST_SECONDS = 20, 2.0, 1e-3
CLEAR_ROUNDS, CLEAR = 5, 1.2
"""Criterion for ending the comparison early: after more than `CLEAR_ROUNDS` rounds, the ratio of
the times is above or below `WORTH_IT` by more than the factor `CLEAR`."""
NOT_COMPARED = (
    "its outputs were not compared, because onnxruntime rejects all random inputs that were tried"
)
NOTHING_COMPILED = "nothing of {} is compiled, so that onnxruntime runs the whole network: {}"


@dataclass(frozen=True, eq=False)
class CpuNetwork:
    """A network that is being compiled for a CPU.

    Attributes:
        network: the network. Operators that onnxruntime must run are marked in it.
        split: the network split into a part that is compiled and regions that onnxruntime runs.
        layers: layers for which the target has kernels. If there are none, onnxruntime runs the
            whole network.
        why: reason why there are no layers with kernels, or "".
    """

    network: Network
    split: SplitNetwork
    layers: Sequence[KernelLayer] = ()
    why: str = ""


def read_layers(
    target: Target, network: Network, refused: Mapping[str, str] = MappingProxyType({})
) -> CpuNetwork:
    """Split a network for compilation, and find the layers for which the target has kernels.

    Operators with many multiply-accumulates (`MANY_MACS`) but without a kernel are left to
    onnxruntime.

    Args:
        target: the CPU target.
        network: the network.
        refused: operators that cannot be compiled: reasons by operator name.

    Raises:
        TilewrightError: the model cannot be imported.
    """
    from tilewright.networks.compiled.layers import activated_layers

    network = network.refusing(refused)
    tried = set[str]()
    while True:
        split = network.split()
        if split.compiled is None:
            return CpuNetwork(network, split, why=why_not_compiled(network))
        whole = split.compiled.whole
        layers = activated_layers(whole.flat, target.space, traits_of(target).float_type)
        slow = _without_kernel(split.compiled, layers)
        if tried.issuperset(slow):  # ends the loop even if a name is not an operator of the file
            why = "" if layers else f"no layer has a kernel on {target.name}"
            return CpuNetwork(network, split, layers, why)
        tried.update(slow)
        network = network.refusing(slow)


def _without_kernel(compiled: Network, layers: Sequence[KernelLayer]) -> dict[str, str]:
    """Find operators with many multiply-accumulates for which there is no kernel.

    onnxruntime runs such operators faster than code that TVM generates.

    Args:
        compiled: the part of the network that is compiled.
        layers: layers for which the target has kernels.

    Returns:
        Reasons by operator name.
    """
    ours = {name for layer in layers for name in (layer.call.node, *layer.names)}
    return {
        name: "Tilewright has no kernel for it"
        for name, macs in compiled.examined.found.macs.items()
        if macs >= MANY_MACS and name not in ours
    }


def run_in_onnxruntime(
    options: BuildOptions, target: Target, network: Network, why: str
) -> tuple[CompiledFiles, tuple[str, ...]]:
    """Build the artifact of a network that onnxruntime runs completely.

    Args:
        options: options of the build.
        target: the CPU target.
        network: the network.
        why: reason why nothing is compiled, for the warning.

    Returns:
        The files of the artifact, and warnings for the user.

    Raises:
        TilewrightError: the artifact cannot be built, as in
            `networks.artifact.library.region_files`.
    """
    last = network.as_region()
    name = Path(options.model).stem
    made = region_files(
        last, target, kind_of(options.target)[0].name, name=name, total_macs=last.regions[0].macs
    )
    warning = NOTHING_COMPILED.format(name, why)
    return made, (warning,) if made.manifest["samples"] else (warning, NOT_COMPARED)


def faster_in_onnxruntime(network: Network, made: CompiledFiles) -> str:
    """Compare the speed of a compiled network with onnxruntime.

    Both run the same inputs alternately on one thread. Processor time is compared, so that other
    work on the machine has no influence. The compiled network counts as fast enough if onnxruntime
    needs less than `LEAST_SECONDS`, or if the compiled network takes less than `WORTH_IT` times as
    long as onnxruntime.

    Args:
        network: the network.
        made: the compiled artifact.

    Returns:
        The reason why onnxruntime should run the whole network, or "" if the compiled artifact is
        fast enough.
    """
    with ThreadPoolExecutor(1, "tilewright-comparison") as thread:
        ours, theirs = thread.submit(_seconds_beside_onnxruntime, network, made).result()
    if theirs < LEAST_SECONDS or ours < WORTH_IT * theirs:
        return ""
    return f"the compiled network takes {ours / theirs:.2f} times as long as onnxruntime"


def _seconds_beside_onnxruntime(network: Network, made: CompiledFiles) -> tuple[float, float]:
    """Measure one inference of the compiled network and of onnxruntime, alternately.

    Args:
        network: the network, which onnxruntime runs as a whole.
        made: the compiled artifact.

    Returns:
        Median processor times in seconds: of the compiled network, and of onnxruntime.
    """
    artifact = CompiledArtifact(made.manifest, made.files, threads=1)
    inputs = made.samples[0].inputs
    last = network.as_region()
    (region,) = last.regions
    session = RegionSession.for_region(region, threads=1)
    # The model may have float16 inputs where the compiled part has float32 inputs.
    matching = {
        name: inputs[name].astype(input_.dtype) for name, input_ in last.seeded_inputs().items()
    }
    taken: list[tuple[float, float]] = []
    begun = time.perf_counter()
    while len(taken) < ROUNDS and time.perf_counter() - begun < MOST_SECONDS:
        start = time.thread_time()
        artifact.infer(inputs)
        middle = time.thread_time()
        session.run(matching)
        taken.append((middle - start, time.thread_time() - middle))
        ours, theirs = np.median(taken[1:] or taken, axis=0).tolist()
        limit = WORTH_IT * theirs
        if len(taken) > CLEAR_ROUNDS and not limit / CLEAR < ours < limit * CLEAR:
            break
    return ours, theirs


def compile_library(
    options: BuildOptions,
    target: Target,
    network: CpuNetwork,
    picks: Mapping[Workload, Pick],
) -> CompiledFiles:
    """Compile a network with the given schedules, and compare its outputs with the source model.

    The outputs are compared on random inputs. The accuracy is measured in addition, and added to
    the manifest, if the options contain calibration samples, which then are the inputs, or if the
    network computes less precisely than in float32.

    Args:
        options: options of the build.
        target: the CPU target.
        network: the network and its layers.
        picks: schedules by workload. Layers without a schedule get code that TVM generates.

    Returns:
        The files of the artifact, which have not been written yet.

    Raises:
        ArtifactError: the error of the outputs exceeds the tolerance.
        InputError: the samples do not fit the model.
        TilewrightError: compilation fails, as in `networks.artifact.library.compile_files`.
    """
    compiled, last = network.split.compiled, network.split.last
    assert compiled is not None
    examined = network.network.examined
    result = examined.found
    quantised = any(map(is_quantised_call, result.calls))
    usual = library_tolerance(traits_of(target).float_type, quantised=quantised)
    tolerance = usual if options.tolerance is None else options.tolerance
    macs = sum((*examined.found.macs.values(), *examined.region_macs.values()))
    picked = [layer for layer in network.layers if layer.workload in picks]
    made = compile_files(
        compiled.whole, picked, dict(picks), target, kind_of(options.target)[0].name,
        name=Path(options.model).stem, total_macs=macs, tolerance=tolerance, last=last,
        ignore_nan=options.ignore_nan,
    )  # fmt: skip
    if options.calibration is None and usual == OF_FLOAT32:
        return made
    return _judged(options, target, last or compiled.whole, made, tolerance)


def _judged(
    options: BuildOptions, target: Target, source: LastRegions | Whole, made: CompiledFiles,
    bound: float,
) -> CompiledFiles:  # fmt: skip
    """Measure the accuracy of a compiled network, and add it to the manifest.

    The inputs are the user's calibration samples or, without samples, random inputs with a fixed
    seed.

    Args:
        options: options of the build.
        target: the CPU target.
        source: the original model, which computes the reference outputs.
        made: the compiled files.
        bound: largest accepted relative error.

    Returns:
        A copy of `made` with the extended manifest.

    Raises:
        ArtifactError: the error exceeds the bound.
        InputError: the samples do not fit the model.
    """
    artifact = CompiledArtifact(made.manifest, made.files)
    one = source.seeded_inputs()
    inputs = [Input(name, array.shape, array.dtype) for name, array in one.items()]
    if options.calibration is None:
        accepted = {
            name: array for name, array in made.samples[0].inputs.items() if array.dtype.kind != "f"
        }
        feeds: Sequence[Mapping[str, NDArray[Any]]] = [
            {**source.seeded_inputs(seed), **accepted} for seed in range(SAMPLES)
        ]
    else:
        given = read_samples(options.calibration, inputs)
        feeds = (*given.feeds, *given.held_out)
    expected = [to_float16(source.reference(dict(feed)), source.halves) for feed in feeds]
    check = Check(feeds, expected, as_text(made.manifest["reference"]))
    result = accuracy(check, artifact.infer, bound, {})
    refuse_inaccurate(result, Path(options.model).stem)
    return replace(made, manifest={**made.manifest, "accuracy": result.to_json()})


@dataclass(frozen=True)
class DynamicModel:
    """A model with dynamic dimensions, which is compiled once per requested size.

    Attributes:
        inputs: shapes of the inputs, with dynamic dimensions given by name.
        wanted: shapes at each of the requested sizes.
        obstacles: for each dynamic dimension, by name, the reason why inputs must not be padded to
            the next larger size; "" if padding is allowed.
    """

    inputs: Mapping[str, NamedShape]
    wanted: tuple[SizedShapes, ...]
    obstacles: Mapping[str, str]


def read_sizes(options: BuildOptions) -> DynamicModel:
    """Read a model with dynamic dimensions, and compute its shapes at the requested sizes.

    Args:
        options: options of the build.

    Raises:
        DynamicShapeError: the model does not have a dynamic dimension that is named in the options.
        ArtifactError: the model is not an ONNX file, or input shapes are fixed too.
    """
    if Path(options.model).suffix != ".onnx":
        raise ArtifactError(
            f"--sizes needs an ONNX file with dynamic dimensions, but {options.model} is not "
            "an ONNX file; leave out --sizes"
        )
    if options.input_shapes:
        raise ArtifactError(
            "--sizes and --input-shape are both given, and each sets the size of the inputs; "
            "leave one of them out"
        )
    model = read_model_file(Path(options.model))
    inputs = named_shapes(model)
    wanted = tuple(shapes_at(inputs, options.sizes))
    weightless = without_weights(to_qdq(model))
    return DynamicModel(inputs, wanted, padding_obstacles(weightless, inputs, options.sizes))


def join_sizes(
    options: BuildOptions, target: Target, model: DynamicModel, made: Sequence[CompiledFiles]
) -> CompiledFiles:
    """Combine the libraries that were compiled for the sizes of a dynamic model into one artifact.

    Args:
        options: options of the build.
        target: the CPU target.
        model: the model with its sizes.
        made: compiled files, one per size, in the order of `model.wanted`.

    Returns:
        The files of the combined artifact.
    """
    sizes = [item.sizes for item in model.wanted]
    return join_libraries(model.inputs, list(zip(sizes, made, strict=True)), model.obstacles)


def write_library(options: BuildOptions, made: CompiledFiles) -> Mapping[str, Json]:
    """Write the files of an artifact, and return its manifest.

    Args:
        options: options of the build.
        made: the compiled files.

    Raises:
        ArtifactError: the output folder contains other files.
    """
    return write_folder(options.out, made.files, made.manifest)
