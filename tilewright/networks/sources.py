"""Opens a network from its source: one contract, and the reader of model files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tilewright.networks.errors import DynamicShapeError
from tilewright.networks.model_analysis import Examined
from tilewright.networks.onnx_file import load_weights, read, weight_files
from tilewright.networks.onnx_source import OnnxSource
from tilewright.networks.tflite.convert import convert
from tilewright.networks.tflite.file import read as read_tflite
from tilewright.networks.torch_source import TorchSource

if TYPE_CHECKING:
    import onnx

    from tilewright.networks.imported_model import Whole
    from tilewright.networks.partition.last_regions import LastRegions
    from tilewright.networks.partition.regions import Region

InputShapes = Mapping[str, Sequence[int]]

TORCH_SUFFIXES = (".pt2", ".pt", ".pth")
TFLITE_SUFFIX = ".tflite"


class Source(Protocol):
    """A model that can be examined without its weights, and compiled with them."""

    name: str

    @property
    def has_graph(self) -> bool:
        """Whether `weighted` gives a model."""

    def weighted(self) -> onnx.ModelProto | None:
        """The model as an ONNX graph with its weights; None for one that comes as none. Raises
        `ModelFileError`."""

    def examine(self) -> Examined:
        """What the importer finds. Raises `ModelFileError`, `DynamicShapeError` or
        `ImportFailedError`; operators that cannot be imported are part of it."""

    def split(self, *, without_layers: bool = False) -> tuple[Source | None, LastRegions | None]:
        """The part of it that is compiled, None if nothing is, and what onnxruntime runs behind
        it. What neither multiplies nor pools is compiled if it is wanted `without_layers`. Raises
        as `examine`."""

    def as_region(self, regions: Sequence[Region], macs: int) -> LastRegions:
        """All of it as one region, which takes the place of `regions`. Raises
        `UnsupportedOperatorError` for a model that is no ONNX graph."""

    def refuse(self, operators: Mapping[str, str]) -> None:
        """Leave operators to onnxruntime, by name with the reason."""

    def whole(self) -> Whole:
        """All of it as the importer makes it, weights included. Raises as `examine`, and
        `UnsupportedOperatorError`."""


def read_source(path: Path, input_shapes: InputShapes) -> Source:
    """An ONNX, TensorFlow Lite or torch.export file, read and checked in this process.

    Raises `ModelFileError`, and `DynamicShapeError` where a torch.export file is given shapes.
    """
    if path.suffix in TORCH_SUFFIXES:
        if input_shapes:
            raise DynamicShapeError(
                "a torch.export file fixes its own shapes; export it again with other inputs"
            )
        return TorchSource(path)
    if path.suffix == TFLITE_SUFFIX:
        converted = convert(read_tflite(path))
        return OnnxSource(
            str(path), converted.model, lambda: converted.model, input_shapes, converted.missing
        )
    model = read(path)
    return OnnxSource(str(path), model, lambda: load_weights(model, path.parent), input_shapes)


def external_files(path: Path) -> tuple[Path, ...]:
    """The files of weights beside an ONNX file; none beside another. Raises `ModelFileError`."""
    if path.suffix in (*TORCH_SUFFIXES, TFLITE_SUFFIX):
        return ()
    return weight_files(path)
