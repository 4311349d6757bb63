"""First two steps of a run: reading a network and extracting the workloads to tune."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TypedDict

from tilewright import networks
from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_int, as_list, as_object, as_text, digest
from tilewright.core.user_text import printable
from tilewright.networks.epilogues import EpilogueMode
from tilewright.networks.errors import NothingToOffload
from tilewright.networks.model_source import external_files
from tilewright.networks.network import Network as Read
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.report import nothing_offloaded
from tilewright.networks.quantisation.samples import sample_files
from tilewright.targets.base import Target
from tilewright.targets.epilogue import DEFAULT_EPILOGUE, parse_epilogue
from tilewright.targets.workload import Workload, parse_workload
from tilewright.tuning.gains import Macs

InputShapes = Mapping[str, Sequence[int]]


class UnknownLayer(TilewrightError):
    """The network does not have a layer with this name, or the layer runs on the CPU."""

    def __init__(self, layer: str, known: Sequence[str]) -> None:
        near = get_close_matches(layer, known, n=3)
        meant = f"; did you mean {' or '.join(near)}?" if near else ";"
        super().__init__(
            f"the layer '{layer}' has nothing to tune{meant} 'tilewright inspect' lists the "
            "layers that are offloaded"
        )


@dataclass(frozen=True)
class Model:
    """A network that has been read successfully.

    Attributes:
        source: path of the model file, or name of a built-in network.
        name: name of the network.
        digest: digest of its contents.
    """

    source: str
    name: str
    digest: str


@dataclass(frozen=True)
class Subgraph:
    """A workload of a network.

    Attributes:
        workload: the workload.
        count: number of calls per inference.
        names: names of the operators with this workload.
        macs: multiply-accumulates of all calls in the model, without padding.
    """

    workload: Workload
    count: int
    names: tuple[str, ...]
    macs: int = 0

    def to_json(self) -> dict[str, Json]:
        """Convert the workload to JSON, from which `from_json` restores it."""
        return {
            "workload": self.workload.to_json(), "count": self.count, "names": list(self.names),
            "macs": self.macs,
        }  # fmt: skip

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> Subgraph:
        """Restore a workload from the result of `to_json`.

        Raises:
            KeyError: a value is missing.
            ValueError: a value is invalid.
        """
        workload = Workload.from_json(as_object(values["workload"]))
        names = tuple(map(as_text, as_list(values["names"])))
        return Subgraph(workload, as_int(values["count"]), names, as_int(values["macs"]))


@dataclass(frozen=True)
class Extracted:
    """The workloads that were extracted from a network, and their share of the network.

    Attributes:
        subgraphs: the workloads to tune, in order of first use.
        macs: multiply-accumulates of the whole network and of these workloads.
    """

    subgraphs: tuple[Subgraph, ...]
    macs: Macs

    def to_json(self) -> dict[str, Json]:
        """Convert the workloads to JSON, from which `from_json` restores them."""
        return {
            "subgraphs": [subgraph.to_json() for subgraph in self.subgraphs],
            "macs": {"total": self.macs["total"], "offloaded": self.macs["offloaded"]},
        }

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> Extracted:
        """Restore the workloads from the result of `to_json`.

        Raises:
            KeyError: a value is missing.
            ValueError: a value is invalid.
        """
        subgraphs = [
            Subgraph.from_json(as_object(subgraph)) for subgraph in as_list(values["subgraphs"])
        ]
        macs = as_object(values["macs"])
        return Extracted(
            tuple(subgraphs),
            {"total": as_int(macs["total"]), "offloaded": as_int(macs["offloaded"])},
        )


class NetworkPart(TypedDict, total=False):
    """The part of a network that was tuned: either a list of layers, or a single workload.

    Attributes:
        layers: names of the tuned layers.
        workloads_of_network: number of workloads of the whole network, if `layers` is present.
        workload: text of the workload.
        epilogue: text of the workload's epilogue, the operations on its result.
    """

    layers: list[str]
    workloads_of_network: int
    workload: str
    epilogue: str


@dataclass(frozen=True)
class TuningNetwork:
    """The subject of a tuning run.

    Attributes:
        model: the network.
        target: the target.
        found: workloads of the network that run on the target.
        part: the part that is tuned; None for the whole network.
    """

    model: Model
    target: Target
    found: Extracted
    part: NetworkPart | None = None

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The workloads to tune, in order of first use."""
        return self.found.subgraphs


def import_model(source: str, input_shapes: InputShapes) -> Model:
    """Read a built-in network or a model file, and check it.

    Args:
        source: path of the model file, or name of a built-in network.
        input_shapes: fixed input shapes by name.

    Raises:
        ModelFileError: the file is missing, cannot be read or is not a valid model.
        DynamicShapeError: an input shape is unknown or wrong.
        ImportFailedError: the model is valid but cannot be imported.
        UnknownName: there is no built-in network with this name.
    """
    content = source_digest(source)
    network = _network(source, _frozen(input_shapes), content)
    _ = network.examined  # raises an error if the file cannot be read
    return Model(source, printable(Path(network.name).stem), content)


def extract_subgraphs(
    model: Model,
    target: Target,
    epilogue: EpilogueMode,
    max_waste: float,
    input_shapes: InputShapes,
    calibration: str = "",
) -> Extracted:
    """Extract the workloads of a network that run on a target.

    Args:
        model: the network.
        target: the target.
        epilogue: rule for the epilogues of the workloads, the operations that are fused into them.
        max_waste: a layer is offloaded only if at most this fraction of its multiplications are
            with padding zeros.
        input_shapes: fixed input shapes by name.
        calibration: path of samples for the quantisation of a float network, or "".

    Raises:
        UnsupportedOperatorError: an operator cannot be imported.
        NothingToOffload: no layer runs on the target.
        InputError: the samples cannot be read.
    """
    content = model.digest + weights_digest(model.source)
    network = _network(model.source, _frozen(input_shapes), content)
    samples = Path(calibration) if calibration else None
    if samples is not None:
        sample_files(samples)  # reject a folder without samples even if the network needs none
    network = network.calibrated_by(samples)
    accelerator = Accelerator.for_target(target, epilogue, max_waste)
    result, report = network.surveyed_on(accelerator)
    if not result:
        raise NothingToOffload(nothing_offloaded(report))
    macs = {operator.name: operator.macs for operator in report.operators}
    return Extracted(
        tuple(
            Subgraph(workload, count, tuple(names), sum(macs.get(name, 0) for name in names))
            for workload, count, names in result
        ),
        {"total": report.total_macs, "offloaded": report.offloaded_macs},
    )


def lone_workload(text: str, epilogue: str) -> tuple[Model, Extracted]:
    """Wrap a single workload as a network that consists only of this workload.

    The default epilogue of integer operations is replaced by none for pools and for floating-point
    workloads.

    Args:
        text: text of the workload, such as `conv2d:n=1,c=64,…`.
        epilogue: text of its epilogue, the operations on the result.

    Returns:
        The network, and its list of workloads with this one workload.

    Raises:
        WorkloadError: the text is invalid.
    """
    usual = parse_epilogue(epilogue) == DEFAULT_EPILOGUE
    workload = parse_workload(text, None if usual else epilogue)
    content = digest(f"{workload}; {epilogue}".encode())
    macs: Macs = {"total": workload.macs, "offloaded": workload.macs}
    alone = Extracted((Subgraph(workload, 1, (), workload.macs),), macs)
    return Model(text, str(workload), content), alone


def select_layers(extracted: Extracted, layers: Sequence[str]) -> Extracted:
    """Select the workloads of the given layers.

    Args:
        extracted: all workloads of the network.
        layers: names of operators.

    Returns:
        The selected workloads. `offloaded` is the number of their multiply-accumulates.

    Raises:
        UnknownLayer: a layer is not among the workloads.
    """
    known = [name for subgraph in extracted.subgraphs for name in subgraph.names]
    for layer in layers:
        if layer not in known:
            raise UnknownLayer(layer, known)
    some = tuple(subgraph for subgraph in extracted.subgraphs if set(layers) & set(subgraph.names))
    covered = sum(item.macs for item in some)
    return Extracted(some, {"total": extracted.macs["total"], "offloaded": covered})


def source_digest(source: str) -> str:
    """Return a digest of a model file without external weights, or of a built-in network.

    Args:
        source: path of the model file, or name of a built-in network. The digest of a built-in
            network covers its name and the code of all built-in networks.
    """
    path = Path(source)
    if path.is_file():
        return _file_digest(path)
    zoo = Path(networks.__file__).parent / "zoo"
    return digest(source.encode() + b"".join(f.read_bytes() for f in sorted(zoo.glob("*.py"))))


def weights_digest(source: str) -> str:
    """Return a digest of the external weights of a model file, or "" if it has none.

    Args:
        source: path of the model file, or name of a built-in network.

    Raises:
        ModelFileError: a file cannot be read.
    """
    files = external_files(Path(source)) if Path(source).is_file() else ()
    return digest("".join(map(_file_digest, files)).encode()) if files else ""


def calibration_digest(calibration: str) -> str:
    """Return a digest of the calibration samples in a file or folder.

    Args:
        calibration: path of the samples, or "" for none.

    Returns:
        The digest, or "" if there are no samples.

    Raises:
        InputError: the path contains no samples.
    """
    files = sample_files(Path(calibration)) if calibration else ()
    return digest("".join(map(_file_digest, files)).encode()) if files else ""


def _file_digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _frozen(shapes: InputShapes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, tuple(shape)) for name, shape in shapes.items()))


@lru_cache(maxsize=1)
def _network(source: str, shapes: tuple[tuple[str, tuple[int, ...]], ...], content: str) -> Read:
    """Load a network, or return it from the cache.

    Args:
        source: path of the model file, or name of a built-in network.
        shapes: pairs of an input's name and its fixed shape.
        content: digest of the network's files. It is part of the cache key, so that a changed file
            is loaded again.
    """
    return networks.load(source, dict(shapes) or None, sandbox=True)
