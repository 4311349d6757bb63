"""Opens a network from its source: one contract, and the reader of model files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tilewright.networks.model_analysis import Examined
from tilewright.networks.onnx_file import load_weights, read, weight_files
from tilewright.networks.onnx_source import OnnxSource
from tilewright.networks.size_limits import check_sizes
from tilewright.networks.tflite.convert import convert
from tilewright.networks.tflite.file import read as read_tflite
from tilewright.networks.torch_export import TORCH_SUFFIXES, convert_exported

if TYPE_CHECKING:
    import onnx

    from tilewright.networks.imported_model import Whole

InputShapes = Mapping[str, Sequence[int]]

TFLITE_SUFFIX = ".tflite"


class Source(Protocol):
    """A model that can be examined without its weights, and compiled with them."""

    name: str

    def weighted(self) -> onnx.ModelProto:
        """The model as an ONNX graph with its weights. Raises `ModelFileError`."""

    def examine(self) -> Examined:
        """What the importer finds. Raises `ModelFileError`, `DynamicShapeError` or
        `ImportFailedError`; operators that cannot be imported are part of it."""

    def whole(self) -> Whole:
        """All of it as the importer makes it, weights included. Raises as `examine`, and
        `UnsupportedOperatorError`."""


def read_source(path: Path, input_shapes: InputShapes, *, allow_code: bool = False) -> Source:
    """Read and check an ONNX or TensorFlow Lite file in this process, or have PyTorch convert a
    torch.export file, which `allow_code` permits. Raises `ModelFileError`."""
    if path.suffix in TORCH_SUFFIXES:
        exported = convert_exported(path, allow_code=allow_code)
        check_sizes(exported)
        return OnnxSource(str(path), exported, lambda: exported, input_shapes)
    if path.suffix == TFLITE_SUFFIX:
        converted = convert(read_tflite(path))
        check_sizes(converted.model)
        return OnnxSource(
            str(path), converted.model, lambda: converted.model, input_shapes, converted.missing
        )
    model = read(path)
    check_sizes(model)
    return OnnxSource(str(path), model, lambda: load_weights(model, path.parent), input_shapes)


def external_files(path: Path) -> tuple[Path, ...]:
    """The files of weights beside an ONNX file; none beside another. Raises `ModelFileError`."""
    if path.suffix in (*TORCH_SUFFIXES, TFLITE_SUFFIX):
        return ()
    return weight_files(path)
