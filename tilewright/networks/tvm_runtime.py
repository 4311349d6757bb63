"""Runs parts of Relax modules on an accelerator, for TVM scripts of users (docs/guides/tvm.md).

A run of layers is serialised as bytes, which a module carries to where it runs. Offloaded modules
call a packed function, which is registered here and runs on the simulated board. Call
`flows.tvm_partition.partition_for_vta`. Importing this module loads no TVM.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core import formats
from tilewright.core.errors import TilewrightError
from tilewright.core.files import (
    Json,
    as_int,
    as_list,
    as_number,
    as_object,
    as_text,
    pack_files,
    read_json,
    unpack_files,
)
from tilewright.core.lazy_module import lazy_module
from tilewright.networks.artifact.run import Order, check_order
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.targets.artifact_types import BuiltProgram, LayerGraph, Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Builds, capability, specification_of
from tilewright.targets.layer import Layer, Value
from tilewright.targets.registry import rebuild

tvm_ffi = lazy_module("tvm_ffi")

DESCRIPTION = "program.json"
Array = NDArray[Any]


class OffloadError(TilewrightError):
    """A program that is damaged, of another version, or given other tensors than it takes."""


@dataclass(frozen=True)
class LayerCycles:
    """A layer that runs on the accelerator: cycles in its stream and by itself, and what no
    schedule of it beats. `names` are the variables of the module that it stands for."""

    name: str
    names: tuple[str, ...]
    operator: str
    workload: str
    macs: int
    cycles: int
    alone: int
    roofline: int


def serialise_program(
    graph: IntegerGraph, layers: Sequence[Layer], outputs: Sequence[str], picks: Sequence[Pick],
    target: Target, kind: str,
) -> bytes:  # fmt: skip
    """The program of some layers of a graph, of which others read the values `outputs`; `kind` is
    what `targets.registry.rebuild` knows the target by. Raises `WorkloadError`."""
    builds = capability(target, Builds)
    assert builds is not None
    made = builds.build(LayerGraph(tuple(layers), graph.values, tuple(outputs), {}, {}), picks)
    rows: list[dict[str, Json]] = [
        {
            "name": layer.name, "names": list(layer.names), "operator": layer.operator,
            "macs": layer.macs, **row,
        }
        for layer, row in zip(layers, made.layers, strict=True)
    ]  # fmt: skip
    description: dict[str, Json] = {
        "version": formats.OFFLOADED.written,
        "kind": kind,
        "keys": specification_of(target) or {},
        "layers": rows,
        "segments": [list(made.ports[number][0]) for _, number in made.order],
        "inputs": list(inputs_of(layers)),
        "outputs": [{"name": name, "shape": list(graph.values[name].shape)} for name in outputs],
        "values": {layer.output: list(graph.values[layer.output].shape) for layer in layers},
    }
    text = json.dumps(description, ensure_ascii=False, sort_keys=True)
    return pack_files({**made.files, DESCRIPTION: text.encode()})


def inputs_of(layers: Sequence[Layer]) -> tuple[str, ...]:
    """The values that layers read and do not write, in the order they are read."""
    own = {layer.output for layer in layers}
    read = [name for layer in layers for name in layer.reads]
    return tuple(dict.fromkeys(name for name in read if name not in own))


def layer_cycles(content: bytes) -> tuple[LayerCycles, ...]:
    """The layers of a program, in order. Raises `OffloadError`."""
    try:
        rows = as_list(_description(_files(content))["layers"])
        return tuple(_cycles(as_object(row)) for row in rows)
    except (KeyError, ValueError) as error:
        raise OffloadError(f"the module's layers cannot be read ({error})") from None


def clock_hz(content: bytes) -> float:
    """Of the accelerator that a program is for. Raises `OffloadError`."""
    try:
        return as_number(as_object(_description(_files(content))["keys"])["clock_mhz"]) * 1e6
    except (KeyError, ValueError) as error:
        raise OffloadError(f"the module does not name a clock ({error})") from None


class HostProgram:
    """A program on a simulated accelerator. One thread runs it at a time, others wait."""

    def __init__(self, content: bytes) -> None:
        """Raises `OffloadError`, and what `Builds.open` raises."""
        files = _files(content)
        try:
            self._open(files, _description(files))
        except (KeyError, ValueError, TypeError) as error:
            raise OffloadError(
                f"the module holds no valid program ({error}); partition it again"
            ) from None
        self._lock = threading.Lock()

    def _open(self, files: Mapping[str, bytes], said: Mapping[str, Json]) -> None:
        self.inputs = tuple(map(as_text, as_list(said["inputs"])))
        self.outputs = tuple(
            Value(as_text(row["name"]), tuple(map(as_int, as_list(row["shape"]))))
            for row in map(as_object, as_list(said["outputs"]))
        )
        self._shapes = {
            name: tuple(map(as_int, as_list(shape)))
            for name, shape in as_object(said["values"]).items()
        }
        self._loads = [tuple(map(as_text, as_list(loads))) for loads in as_list(said["segments"])]
        target = rebuild(as_text(said["kind"]), as_object(said["keys"]), "")
        builds = capability(target, Builds)
        if builds is None:
            raise OffloadError(f"{target.name} runs no programs; partition the module again")
        layers = [as_object(row) for row in as_list(said["layers"])]
        self._program: BuiltProgram = builds.open(files, layers)
        self._sizes = self._checked_sizes()

    def _checked_sizes(self) -> list[int]:
        """The elements of each of `inputs`. Raises `ValueError` where a segment would lack a tensor
        or get one of another size."""
        loaded = {port.name: port for loads, _ in self._program.ports for port in loads}
        given = [Value(name, loaded[name].shape if name in loaded else ()) for name in self.inputs]
        made = {name: Value(name, shape) for name, shape in self._shapes.items()}
        check_order(
            Order(
                steps=tuple(("segment", number) for number in range(len(self._loads))),
                loads=self._loads, islands=(), inputs=tuple(given), outputs=self.outputs,
                values=made, quantised={}, results={},
            ),
            self._program.ports,
        )  # fmt: skip
        if not all(port.name in made for _, stores in self._program.ports for port in stores):
            raise ValueError("a segment gives a tensor that is not described")
        return [prod(value.shape) for value in given]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Int8 arrays in the order of `inputs`, in the shapes of their values; gives those of
        `outputs`. Raises `OffloadError` for arrays of another size."""
        if [array.size for array in arrays] != self._sizes:
            raise OffloadError(
                "the module gives its program tensors of other sizes; partition it again"
            )
        tensors = dict(zip(self.inputs, arrays, strict=True))
        with self._lock:
            for segment, loads in enumerate(self._loads):
                made = self._program.run(segment, {name: tensors[name] for name in loads})
                for name, array in made.items():
                    tensors[name] = array.reshape(self._shapes[name])
        return [tensors[value.name] for value in self.outputs]


def _files(content: bytes) -> dict[str, bytes]:
    try:
        return unpack_files(content)
    except ValueError as error:
        raise OffloadError(
            f"the program in the module is damaged ({error}); partition it again"
        ) from None


def _description(files: Mapping[str, bytes]) -> dict[str, Json]:
    try:
        said = as_object(read_json(files[DESCRIPTION]))
        version = said[formats.OFFLOADED.key]
    except (KeyError, ValueError):
        raise OffloadError("the module holds no valid program; partition it again") from None
    if refusal := formats.OFFLOADED.refusal(DESCRIPTION, version):
        raise OffloadError(refusal)
    return said


def _cycles(row: Mapping[str, Json]) -> LayerCycles:
    return LayerCycles(
        name=as_text(row["name"]),
        names=tuple(map(as_text, as_list(row["names"]))),
        operator=as_text(row["operator"]),
        workload=as_text(row["workload"]),
        macs=as_int(row["macs"]),
        cycles=as_int(row["stream_cycles"]),
        alone=as_int(row["cycles"]),
        roofline=as_int(row["roofline_cycles"]),
    )


RUN = "tilewright.vta.run"
KEPT = 64
"""Programs that stay in memory, those called last."""

_programs: OrderedDict[str, HostProgram] = OrderedDict()
_lock = threading.Lock()


def register() -> None:
    """Make the function known to TVM in this process. `partition_for_vta` does it; a process that
    loads an exported module does it itself, before it makes the `VirtualMachine`."""
    tvm_ffi.register_global_func(RUN, run, override=True)


def run(digest: str, content: Any, *tensors: Any) -> None:
    """Run the program that is `content`, a uint8 tensor (bytes,) whose SHA-256 is `digest`, on the
    first of `tensors`, its inputs, and write the others, its outputs; all int8. Raises
    `ValueError`, which TVM passes on."""
    try:
        program = open_program(digest, content)
        count = len(program.inputs)
        arrays = [np.from_dlpack(tensor) for tensor in tensors]
        if len(arrays) != count + len(program.outputs):
            raise ValueError(
                f"{len(arrays)} tensors are given to a program of {count} inputs and "
                f"{len(program.outputs)} outputs; partition the module again"
            )
        for array, made in zip(arrays[count:], program.run(arrays[:count]), strict=True):
            array[...] = made
    except TilewrightError as error:
        raise ValueError(str(error)) from None


def open_program(digest: str, content: Any) -> HostProgram:
    """The program of a digest, read the first time from `content`, a uint8 tensor (bytes,). Raises
    `OffloadError` where the digest is not that of the bytes."""
    with _lock:
        if digest not in _programs:
            data = np.from_dlpack(content).tobytes()
            if hashlib.sha256(data).hexdigest() != digest:
                raise OffloadError(
                    "the program in the module has other bytes than when it was made; partition "
                    "the module again"
                )
            _programs[digest] = HostProgram(data)
            while len(_programs) > KEPT:
                _programs.popitem(last=False)
        _programs.move_to_end(digest)
        return _programs[digest]
