"""The first two steps: read a network, and find what there is to tune in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

import networks
from networks.network import Network
from targets.capabilities import Blocks
from targets.errors import TilewrightError
from targets.files import Json, as_int, as_list, as_object, as_text, digest
from targets.workload import Workload, parse_workload

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
    """A workload of a network: how often an inference runs it, and the operators it stands for."""

    workload: Workload
    count: int
    names: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        """What `from_json` reads."""
        return {
            "workload": self.workload.to_json(), "count": self.count, "names": list(self.names),
        }  # fmt: skip

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> Subgraph:
        """Raises `KeyError` or `ValueError` if it was not written by `to_json`."""
        workload = Workload.from_json(as_object(values["workload"]))
        names = tuple(map(as_text, as_list(values["names"])))
        return Subgraph(workload, as_int(values["count"]), names)


def import_model(source: str, input_shapes: InputShapes) -> Model:
    """Read a built-in network or a file and check it. Raises `ModelFileError`, `UnknownName`."""
    network = _network(source, _frozen(input_shapes))
    _ = network.examined  # a file that cannot be read is refused here
    return Model(source, Path(network.name).stem, source_digest(source))


def extract_subgraphs(
    model: Model, blocks: Blocks, max_waste: float, input_shapes: InputShapes
) -> list[Subgraph]:
    """The workloads of the network on blocks of this shape, with their multiplicity. Raises
    `UnsupportedOperatorError`."""
    network = _network(model.source, _frozen(input_shapes))
    found = network.workloads(
        blocks.in_channels, blocks.out_channels, blocks.batch, max_waste=max_waste
    )
    return [Subgraph(workload, count, tuple(names)) for workload, count, names in found]


def lone_workload(text: str, epilogue: str) -> tuple[Model, Subgraph]:
    """A workload by its text as a network of its own. Raises `WorkloadError`."""
    workload = parse_workload(text, epilogue)
    content = digest(f"{workload}; {epilogue}".encode())
    return Model(text, str(workload), content), Subgraph(workload, 1, ())


def those_of(subgraphs: Sequence[Subgraph], layers: Sequence[str]) -> list[Subgraph]:
    """The workloads that these layers are, by the operators' names. Raises `UnknownLayer`."""
    known = [name for each in subgraphs for name in each.names]
    for layer in layers:
        if layer not in known:
            raise UnknownLayer(layer, known)
    return [each for each in subgraphs if set(layers) & set(each.names)]


def source_digest(source: str) -> str:
    """Of a file its bytes (and those of external weights beside it are not read: shapes do not
    depend on them); of a built-in network the code that builds it."""
    path = Path(source)
    if path.is_file():
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    zoo = Path(networks.__file__).parent / "zoo"
    return digest(source.encode() + b"".join(f.read_bytes() for f in sorted(zoo.glob("*.py"))))


def _frozen(shapes: InputShapes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, tuple(shape)) for name, shape in shapes.items()))


@lru_cache(maxsize=1)
def _network(source: str, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Network:
    return networks.load(source, dict(shapes) or None, sandbox=True)
