"""Recognises models that compute in integers already, and takes them in their own scales."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from tilewright.core.errors import UnknownName
from tilewright.core.files import Json
from tilewright.networks import zoo
from tilewright.networks.model_source import TFLITE_SUFFIX
from tilewright.networks.onnx.files import load_weights, read
from tilewright.networks.onnx.normalise import normalise
from tilewright.networks.onnx.size_limits import check_sizes
from tilewright.networks.onnx.to_qdq import is_quantised, to_qdq
from tilewright.networks.quantisation.quantise import (
    Quantised,
    QuantiseOptions,
    calibration_inputs,
    quantise,
)
from tilewright.networks.quantisation.samples import Samples, default_samples, read_samples
from tilewright.networks.tflite.convert import read_tflite
from tilewright.networks.torch_export import TORCH_SUFFIXES, convert_exported


@dataclass(frozen=True)
class Existing:
    """A quantised model in QDQ form, with the scales and zero points that it came with."""

    model: onnx.ModelProto
    keep_float: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """What a manifest says of it."""
        return {"method": "as the model has it", "kept_float": dict.fromkeys(self.keep_float, "")}


def as_it_is(
    model: onnx.ModelProto,
    keep_float: Collection[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Existing:
    """A quantised model in QDQ form. Operators of `keep_float` are left to the CPU, which computes
    them on dequantised numbers as the model does. Raises `UnknownName` for one that the model has
    not, and as `networks.onnx.normalise.normalise`."""
    normal = normalise(to_qdq(model), input_shapes or {})
    names = [node.name for node in normal.graph.node]
    for name in keep_float:
        if name not in names:
            raise UnknownName("layer", name, names)
    return Existing(normal.model, tuple(keep_float))


def model_with_weights(
    source: str | Path, seed: int = 0, *, allow_code: bool = False
) -> onnx.ModelProto:
    """Return a built-in network by name (`seed` draws its weights), an ONNX file with all its data,
    or what a TensorFlow Lite or torch.export file is in ONNX. `allow_code` permits the code that
    the latter may run when it is read.

    Raises `UnknownName`, `ModelFileError`, and `UnsupportedOperatorError` for operators of
    TensorFlow Lite that cannot be expressed.
    """
    if str(source) in zoo.FAMILIES:
        return zoo.build(str(source), seed)
    path = Path(source)
    if not path.exists() and path.name == str(source) and not path.suffix:
        raise UnknownName("network", str(source), zoo.names())
    if path.suffix in TORCH_SUFFIXES:
        model = convert_exported(path, allow_code=allow_code)
    elif path.suffix == TFLITE_SUFFIX:
        model = read_tflite(path)
    else:
        model = read(path)
    check_sizes(model)
    return load_weights(model, path.parent)


def int8_model(
    model: onnx.ModelProto,
    samples: Samples | None = None,
    options: QuantiseOptions | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Quantised | Existing:
    """A float model as `quantise` makes it of samples; a quantised one `as_it_is`. Raises as
    these."""
    options = options or QuantiseOptions()
    if is_quantised(model):
        return as_it_is(model, options.keep_float, input_shapes)
    return quantise(model, samples, options, input_shapes=input_shapes)


def samples_for(
    model: onnx.ModelProto,
    calibration: Path | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Samples:
    """The samples in `calibration`, an NPZ file or a folder; else the network's own, or seeded
    ones. Raises as `read_samples` and `calibration_inputs`."""
    inputs = calibration_inputs(model, input_shapes)
    if calibration is not None:
        return read_samples(calibration, inputs)
    return default_samples(model, inputs)
