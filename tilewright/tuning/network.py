"""Implements the first two steps: reads a network, and finds what there is to tune in it."""

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
    """A layer that the network does not have, or that is left to the CPU."""

    def __init__(self, layer: str, known: Sequence[str]) -> None:
        near = get_close_matches(layer, known, n=3)
        meant = f"; did you mean {' or '.join(near)}?" if near else ";"
        super().__init__(
            f"there is nothing to tune in a layer '{layer}'{meant} 'tilewright inspect' names "
            "the layers that are offloaded"
        )


@dataclass(frozen=True)
class Model:
    """A network that can be read: where from, its name, and a digest of its content."""

    source: str
    name: str
    digest: str


@dataclass(frozen=True)
class Subgraph:
    """A workload of a network: how often an inference runs it, the operators it stands for, and the
    multiply-accumulates that these do in the model, all calls together and nothing padded."""

    workload: Workload
    count: int
    names: tuple[str, ...]
    macs: int = 0

    def to_json(self) -> dict[str, Json]:
        """What `from_json` reads."""
        return {
            "workload": self.workload.to_json(), "count": self.count, "names": list(self.names),
            "macs": self.macs,
        }  # fmt: skip

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> Subgraph:
        """Raises `KeyError` or `ValueError` if it was not written by `to_json`."""
        workload = Workload.from_json(as_object(values["workload"]))
        names = tuple(map(as_text, as_list(values["names"])))
        return Subgraph(workload, as_int(values["count"]), names, as_int(values["macs"]))


@dataclass(frozen=True)
class Extracted:
    """What there is to tune in a network, in order of first use, and how much of it that is."""

    subgraphs: tuple[Subgraph, ...]
    macs: Macs

    def to_json(self) -> dict[str, Json]:
        """What `from_json` reads."""
        return {
            "subgraphs": [each.to_json() for each in self.subgraphs],
            "macs": {"total": self.macs["total"], "offloaded": self.macs["offloaded"]},
        }

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> Extracted:
        """Raises `KeyError` or `ValueError` if it was not written by `to_json`."""
        found = [Subgraph.from_json(as_object(each)) for each in as_list(values["subgraphs"])]
        macs = as_object(values["macs"])
        return Extracted(
            tuple(found), {"total": as_int(macs["total"]), "offloaded": as_int(macs["offloaded"])}
        )


class NetworkPart(TypedDict, total=False):
    """What was tuned instead of a whole network: the layers that were asked for, out of a network
    of so many workloads; or a workload by itself, with its epilogue. A workload of a part counts as
    often as in the whole network."""

    layers: list[str]
    workloads_of_network: int
    workload: str
    epilogue: str


@dataclass(frozen=True)
class TuningNetwork:
    """What is tuned: the network, the target, and what of the network suits the target; `part`
    where that is not all of it."""

    model: Model
    target: Target
    found: Extracted
    part: NetworkPart | None = None

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The workloads, in order of first use."""
        return self.found.subgraphs


def import_model(source: str, input_shapes: InputShapes) -> Model:
    """Read a built-in network or a file and check it. Raises `ModelFileError`, `UnknownName`."""
    content = source_digest(source)
    network = _network(source, _frozen(input_shapes), content)
    _ = network.examined  # a file that cannot be read is refused here
    return Model(source, printable(Path(network.name).stem), content)


def extract_subgraphs(
    model: Model,
    target: Target,
    epilogue: EpilogueMode,
    max_waste: float,
    input_shapes: InputShapes,
    calibration: str = "",
) -> Extracted:
    """The workloads of the network that the target gets, with their multiplicity; samples in
    `calibration` quantise a float one. Raises `UnsupportedOperatorError`, `NothingToOffload` where
    there are none, and as `read_samples`."""
    content = model.digest + weights_digest(model.source)
    network = _network(model.source, _frozen(input_shapes), content)
    samples = Path(calibration) if calibration else None
    if samples is not None:
        sample_files(samples)  # also a network that needs none refuses a folder without samples
    network = network.calibrated_by(samples)
    accelerator = Accelerator.of(target, epilogue, max_waste)
    found, report = network.surveyed_on(accelerator)
    if not found:
        raise NothingToOffload(nothing_offloaded(report))
    macs = {operator.name: operator.macs for operator in report.operators}
    return Extracted(
        tuple(
            Subgraph(workload, count, tuple(names), sum(macs.get(name, 0) for name in names))
            for workload, count, names in found
        ),
        {"total": report.total_macs, "offloaded": report.offloaded_macs},
    )


def lone_workload(text: str, epilogue: str) -> tuple[Model, Extracted]:
    """A workload by its text as a network of its own. Of a pool, which has no sums, and of what is
    computed in floating point, the usual steps of integers are none. Raises `WorkloadError`."""
    usual = parse_epilogue(epilogue) == DEFAULT_EPILOGUE
    workload = parse_workload(text, None if usual else epilogue)
    content = digest(f"{workload}; {epilogue}".encode())
    macs: Macs = {"total": workload.macs, "offloaded": workload.macs}
    alone = Extracted((Subgraph(workload, 1, (), workload.macs),), macs)
    return Model(text, str(workload), content), alone


def those_of(found: Extracted, layers: Sequence[str]) -> Extracted:
    """The workloads that these layers are, by the operators' names, and the share of the network
    that they are. Raises `UnknownLayer`."""
    known = [name for each in found.subgraphs for name in each.names]
    for layer in layers:
        if layer not in known:
            raise UnknownLayer(layer, known)
    some = tuple(each for each in found.subgraphs if set(layers) & set(each.names))
    covered = sum(each.macs for each in some)
    return Extracted(some, {"total": found.macs["total"], "offloaded": covered})


def source_digest(source: str) -> str:
    """Of a file its bytes, without the weights beside it; of a built-in network the code that
    builds it."""
    path = Path(source)
    if path.is_file():
        return _file_digest(path)
    zoo = Path(networks.__file__).parent / "zoo"
    return digest(source.encode() + b"".join(f.read_bytes() for f in sorted(zoo.glob("*.py"))))


def weights_digest(source: str) -> str:
    """Of weights beside a model file that was examined, on which scales depend; "" where it has
    none. Raises `ModelFileError`."""
    files = external_files(Path(source)) if Path(source).is_file() else ()
    return digest("".join(map(_file_digest, files)).encode()) if files else ""


def calibration_digest(calibration: str) -> str:
    """Of samples in a file or a folder, "" for none. Raises `InputError` where there are none."""
    files = sample_files(Path(calibration)) if calibration else ()
    return digest("".join(map(_file_digest, files)).encode()) if files else ""


def _file_digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _frozen(shapes: InputShapes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, tuple(shape)) for name, shape in shapes.items()))


@lru_cache(maxsize=1)
def _network(source: str, shapes: tuple[tuple[str, tuple[int, ...]], ...], content: str) -> Read:
    """`content` is the digest of all that is read: what a path names may change between calls."""
    return networks.load(source, dict(shapes) or None, sandbox=True)
