"""Implements the steps of compiling a network for a processor; `flows.build` calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright import networks
from tilewright.core.files import Json
from tilewright.networks.artifact import ArtifactError
from tilewright.networks.artifact.accuracy import (
    OF_QUANTISED,
    SAMPLES,
    Check,
    accuracy,
    refuse,
)
from tilewright.networks.artifact.compiled import (
    OF_BFLOAT16,
    TOLERANCE,
    CompiledArtifact,
    CompiledFiles,
    compile_files,
)
from tilewright.networks.artifact.folder import write_folder
from tilewright.networks.artifact.sized import joined
from tilewright.networks.dynamic_sizes import SizedShapes, named_shapes, shapes_at
from tilewright.networks.float32 import is_quantised
from tilewright.networks.neutral_padding import padding_obstacles
from tilewright.networks.onnx_file import read
from tilewright.networks.onnx_qoperator import to_qdq
from tilewright.networks.quantise.samples import Input, read_samples
from tilewright.networks.strip_weights import without_weights
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import float_type_of
from tilewright.targets.layer import NamedShape
from tilewright.targets.registry import kind_of
from tilewright.targets.workload import Workload
from tilewright.tuning.build_options import BuildOptions

if TYPE_CHECKING:
    from tilewright.networks.compiled.layers import KernelLayer
    from tilewright.networks.network import Network
    from tilewright.networks.onnx_split import OnnxTail


def check_library(options: BuildOptions, target: Target) -> None:
    """Raises `ArtifactError` for what is asked of integers."""
    given = (bool(options.keep_float), options.bare)
    for name, is_given in zip(("--keep-float", "--bare"), given, strict=True):
        if is_given:
            raise ArtifactError(
                f"{name} is about networks in int8, and {target.name} computes in float; leave it "
                "out"
            )


@dataclass(frozen=True, eq=False)
class SplitNetwork:
    """What is compiled of a network, and what onnxruntime runs behind it, if anything."""

    compiled: Network
    tail: OnnxTail | None = None


def read_layers(options: BuildOptions, target: Target) -> tuple[SplitNetwork, list[KernelLayer]]:
    """The network, and its layers that the target has kernels for. Raises `ArtifactError` where
    there are none, and what reading the model raises."""
    from tilewright.networks.compiled.activations import activated_layers

    network = networks.load(
        options.model, options.input_shapes or None, options.seed, allow_code=options.allow_code
    )
    split = SplitNetwork(network)
    if network.examined.unsupported:
        split = SplitNetwork(*network.split())
    whole = split.compiled.whole
    layers = activated_layers(whole.flat, target.space, float_type_of(target))
    if not layers:
        raise ArtifactError(
            f"no layer of {options.model} has a kernel on {target.name}, there is nothing to "
            "build; 'tilewright inspect' says why"
        )
    return split, layers


def compile_library(
    options: BuildOptions,
    target: Target,
    network: SplitNetwork,
    layers: Sequence[KernelLayer],
    picks: Mapping[Workload, Pick],
) -> CompiledFiles:
    """Compile the network with these schedules, and compare it with its source on samples, where
    any were given or its numbers are shorter than float32. Raises as
    `networks.artifact.compiled.compile_files`, `ArtifactError` for outputs beyond the tolerance on
    the samples, and `InputError` for samples that do not fit."""
    found = network.compiled.examined.found
    tolerance = options.tolerance
    usual = OF_BFLOAT16 if float_type_of(target) == "bfloat16" else TOLERANCE
    if any(map(is_quantised, found.calls)):
        usual = OF_QUANTISED
    if tolerance is None:
        tolerance = usual
    macs = sum(found.macs.values())
    picked = [layer for layer in layers if layer.workload in picks]
    made = compile_files(
        network.compiled.whole, picked, dict(picks), target, kind_of(options.target)[0].name,
        name=Path(options.model).stem, total_macs=macs, tolerance=tolerance, tail=network.tail,
    )  # fmt: skip
    if options.calibration is None and usual == TOLERANCE:
        return made
    return _judged(options, target, network, made, tolerance)


def _judged(
    options: BuildOptions, target: Target, network: SplitNetwork, made: CompiledFiles, bound: float
) -> CompiledFiles:
    """What was made, with its accuracy on samples in the manifest: given ones, or seeded ones.
    Raises `ArtifactError` beyond the bound, and `InputError`."""
    source = network.tail or network.compiled.whole
    one = source.seeded_inputs()
    inputs = [Input(name, array.shape, array.dtype) for name, array in one.items()]
    if options.calibration is None:
        accepted = {
            name: array
            for name, array in CompiledArtifact(made.manifest, made.files).check_inputs().items()
            if array.dtype.kind != "f"
        }
        feeds: Sequence[Mapping[str, NDArray[Any]]] = [
            {**source.seeded_inputs(seed), **accepted} for seed in range(SAMPLES)
        ]
    else:
        given = read_samples(options.calibration, inputs)
        feeds = (*given.feeds, *given.held_out)
    expected = [source.reference(dict(feed)) for feed in feeds]
    check = Check(feeds, expected, network.compiled.whole.reference_name)
    artifact = CompiledArtifact(made.manifest, made.files)
    found = accuracy(check, artifact.infer, bound, {})
    refuse(found, Path(options.model).stem)
    return replace(made, manifest={**made.manifest, "accuracy": found.to_json()})


@dataclass(frozen=True)
class DynamicModel:
    """The inputs of a model, dynamic axes by name, and their shapes at the sizes that are asked.
    `obstacles` says by dimension why inputs must not be padded along it, "" where they may."""

    inputs: Mapping[str, NamedShape]
    wanted: tuple[SizedShapes, ...]
    obstacles: Mapping[str, str]


def read_sizes(options: BuildOptions) -> DynamicModel:
    """What sizes a library is compiled for. Raises `DynamicShapeError`, `ArtifactError` for a model
    that is no ONNX file, and what reading it raises."""
    if Path(options.model).suffix != ".onnx":
        raise ArtifactError(
            f"--sizes needs an ONNX file with dynamic dimensions, and {options.model} is no ONNX "
            "file; leave it out"
        )
    if options.input_shapes:
        raise ArtifactError("give either --sizes or --input-shape: both say how large inputs are")
    model = read(Path(options.model))
    inputs = named_shapes(model)
    wanted = tuple(shapes_at(inputs, options.sizes))
    weightless = without_weights(to_qdq(model))
    return DynamicModel(inputs, wanted, padding_obstacles(weightless, inputs, options.sizes))


def join_sizes(
    options: BuildOptions, target: Target, model: DynamicModel, made: Sequence[CompiledFiles]
) -> CompiledFiles:
    """One artifact of the libraries of a model's sizes."""
    sizes = [each.sizes for each in model.wanted]
    return joined(model.inputs, list(zip(sizes, made, strict=True)), model.obstacles)


def write_library(options: BuildOptions, made: CompiledFiles) -> Mapping[str, Json]:
    """Write the folder and return its manifest. Raises `ArtifactError` where other files are in the
    way."""
    return write_folder(options.out, made.files, made.manifest)
