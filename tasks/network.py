"""The first two stages: read a network, and find what there is to tune in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import networks
from networks.network import Network
from targets.files import Json, digest
from targets.vta.spec import VtaSpec
from targets.workload import EpilogueOp, Workload
from tasks.stage import reuse_or_do, stage
from tasks.store import Manifest

NO_TARGET = ""
InputShapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Subgraph:
    """A workload of a network: how often an inference runs it, and the operators it stands for."""

    workload: Workload
    count: int
    names: tuple[str, ...]


@stage("import {source}")
def import_model(source: str, input_shapes: InputShapes | None = None) -> Manifest:
    """Read a built-in network or a file and check it; the key changes with its content."""

    def work() -> tuple[dict[str, Json], dict[str, str]]:
        network = _network(source, _frozen(input_shapes))
        _ = network.examined  # a file that cannot be read is refused here
        return {"source": source, "name": Path(network.name).stem, "digest": content}, {}

    content = source_digest(source)
    shapes = {name: list(shape) for name, shape in (input_shapes or {}).items()}
    return reuse_or_do(
        "import_model", 1, NO_TARGET, {"source": source, "content": content, "shapes": shapes}, work
    )


@stage("subgraphs of {model.values[name]}")
def extract_subgraphs(
    model: Manifest, spec: VtaSpec, max_waste: float, input_shapes: InputShapes | None = None
) -> Manifest:
    """The workloads of the network on blocks of this shape, with their multiplicity."""

    def work() -> tuple[dict[str, Json], dict[str, str]]:
        network = _network(str(model.values["source"]), _frozen(input_shapes))
        found = network.workloads(spec.block_in, spec.block_out, spec.batch, max_waste=max_waste)
        return {
            "subgraphs": [
                {"workload": asdict(workload), "count": count, "names": list(names)}
                for workload, count, names in found
            ]
        }, {}

    blocks = [spec.batch, spec.block_in, spec.block_out]
    inputs = {"model": model.key, "blocks": blocks, "max_waste": max_waste}
    return reuse_or_do("extract_subgraphs", 1, NO_TARGET, inputs, work)


def read_subgraphs(manifest: Manifest) -> list[Subgraph]:
    return [
        Subgraph(_workload(entry["workload"]), entry["count"], tuple(entry["names"]))
        for entry in manifest.values["subgraphs"]
    ]


def source_digest(source: str) -> str:
    """Of a file its bytes (and those of external weights beside it are not read: shapes do not
    depend on them); of a built-in network the code that builds it."""
    path = Path(source)
    if path.is_file():
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    zoo = Path(networks.__file__).parent / "zoo"
    return digest(source.encode() + b"".join(f.read_bytes() for f in sorted(zoo.glob("*.py"))))


def _frozen(shapes: InputShapes | None) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, tuple(shape)) for name, shape in (shapes or {}).items()))


@lru_cache(maxsize=1)
def _network(source: str, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Network:
    return networks.load(source, dict(shapes) or None, sandbox=True)


def _workload(values: dict[str, Json]) -> Workload:
    epilogue = tuple(EpilogueOp(**step) for step in values["epilogue"])
    return Workload(**(values | {"epilogue": epilogue}))
