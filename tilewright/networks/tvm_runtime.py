"""Runs accelerator programs from a user's TVM module (docs/guides/tvm.md).

A sequence of layers is compiled to an accelerator program and serialised to bytes, which the TVM
module holds as a constant. At run time, the TVM module calls the packed function `run`, which
executes the program on a simulated accelerator. `flows.tvm_partition.partition_for_vta` creates
such TVM modules. Importing this file does not load TVM.
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
"""Name of the JSON file that describes a program inside of its serialised form."""
Array = NDArray[Any]


class OffloadError(TilewrightError):
    """Error for a program that is damaged, has another version, or gets tensors of wrong sizes."""


@dataclass(frozen=True)
class LayerCycles:
    """Cycle counts of a layer that runs on the accelerator.

    Attributes:
        name: name of the layer.
        names: the variables of the TVM module that the layer replaces.
        operator: type of the operator.
        workload: the workload as text.
        macs: multiply-accumulates.
        cycles: cycles of the layer inside the program, where it overlaps with its neighbours.
        alone: cycles of the layer when it runs alone.
        roofline: lower bound on the cycles of any schedule.
    """

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
    """Build and serialise the program for a sequence of layers.

    Args:
        graph: the graph that contains the layers.
        layers: the layers to run.
        outputs: names of the tensors that operators outside these layers read.
        picks: the schedule of each layer.
        target: the accelerator.
        kind: type of the target, for example "vta", from which the run time rebuilds the target.

    Returns:
        The program as bytes.

    Raises:
        WorkloadError: a schedule does not fit its layer.
    """
    builds = capability(target, Builds)
    assert builds is not None
    build = builds.build(LayerGraph(tuple(layers), graph.values, tuple(outputs), {}, {}), picks)
    rows: list[dict[str, Json]] = [
        {
            "name": layer.name, "names": list(layer.names), "operator": layer.operator,
            "macs": layer.macs, **row,
        }
        for layer, row in zip(layers, build.layers, strict=True)
    ]  # fmt: skip
    description: dict[str, Json] = {
        "version": formats.OFFLOADED.written,
        "kind": kind,
        "keys": specification_of(target) or {},
        "layers": rows,
        "segments": [list(build.ports[number][0]) for _, number in build.order],
        "inputs": list(inputs_of(layers)),
        "outputs": [{"name": name, "shape": list(graph.values[name].shape)} for name in outputs],
        "values": {layer.output: list(graph.values[layer.output].shape) for layer in layers},
    }
    text = json.dumps(description, ensure_ascii=False, sort_keys=True)
    return pack_files({**build.files, DESCRIPTION: text.encode()})


def inputs_of(layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return the names of the tensors that a sequence of layers reads but does not write.

    Args:
        layers: the layers.

    Returns:
        The names, in order of first use.
    """
    written = {layer.output for layer in layers}
    read = [name for layer in layers for name in layer.reads]
    return tuple(dict.fromkeys(name for name in read if name not in written))


def layer_cycles(content: bytes) -> tuple[LayerCycles, ...]:
    """Return the cycle counts of the layers of a serialised program, in execution order.

    Raises:
        OffloadError: the program is damaged.
    """
    try:
        rows = as_list(_description(_files(content))["layers"])
        return tuple(_cycles(as_object(row)) for row in rows)
    except (KeyError, ValueError) as error:
        raise OffloadError(
            f"the module's layers cannot be read ({error}); partition it again"
        ) from None


def clock_hz(content: bytes) -> float:
    """Return the clock frequency of a serialised program's accelerator in Hz.

    Raises:
        OffloadError: the program is damaged or does not state the frequency.
    """
    try:
        return as_number(as_object(_description(_files(content))["keys"])["clock_mhz"]) * 1e6
    except (KeyError, ValueError) as error:
        raise OffloadError(
            f"the module does not state a clock frequency ({error}); partition it again"
        ) from None


class HostProgram:
    """A program on a simulated accelerator, loaded and ready to run.

    Several threads may call `run`; the calls run one after another.

    Args:
        content: the serialised program.

    Attributes:
        inputs: names of the input tensors.
        outputs: the output tensors.

    Raises:
        OffloadError: the program is damaged. Further errors are those of `Builds.open`.
    """

    def __init__(self, content: bytes) -> None:
        files = _files(content)
        try:
            self._open(files, _description(files))
        except (KeyError, ValueError, TypeError) as error:
            raise OffloadError(
                f"the module contains no valid program ({error}); partition it again"
            ) from None
        self._lock = threading.Lock()

    def _open(self, files: Mapping[str, bytes], description: Mapping[str, Json]) -> None:
        self.inputs = tuple(map(as_text, as_list(description["inputs"])))
        self.outputs = tuple(
            Value(as_text(row["name"]), tuple(map(as_int, as_list(row["shape"]))))
            for row in map(as_object, as_list(description["outputs"]))
        )
        self._shapes = {
            name: tuple(map(as_int, as_list(shape)))
            for name, shape in as_object(description["values"]).items()
        }
        self._loads = [
            tuple(map(as_text, as_list(loads))) for loads in as_list(description["segments"])
        ]
        target = rebuild(as_text(description["kind"]), as_object(description["keys"]), "")
        builds = capability(target, Builds)
        if builds is None:
            raise OffloadError(
                f"programs of {target.name} cannot be executed here; partition the module again "
                "for a VTA"
            )
        layers = [as_object(row) for row in as_list(description["layers"])]
        self._program: BuiltProgram = builds.open(files, layers)
        self._sizes = self._checked_sizes()

    def _checked_sizes(self) -> list[int]:
        """Check that each sequence of layers in the program gets all tensors that it reads.

        Returns:
            The number of elements of each input of the program.

        Raises:
            ValueError: a segment would lack a tensor, or get one of another size.
        """
        loaded = {port.name: port for loads, _ in self._program.ports for port in loads}
        inputs = [Value(name, loaded[name].shape if name in loaded else ()) for name in self.inputs]
        values = {name: Value(name, shape) for name, shape in self._shapes.items()}
        check_order(
            Order(
                steps=tuple(("segment", number) for number in range(len(self._loads))),
                loads=self._loads, islands=(), inputs=tuple(inputs), outputs=self.outputs,
                values=values, quantised={}, results={},
            ),
            self._program.ports,
        )  # fmt: skip
        if not all(port.name in values for _, stores in self._program.ports for port in stores):
            raise ValueError("a segment writes a tensor that is not described")
        return [prod(value.shape) for value in inputs]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the program once.

        Args:
            arrays: int8 arrays in the order of `inputs`.

        Returns:
            int8 arrays in the order of `outputs`, in their shapes.

        Raises:
            OffloadError: an array has the wrong number of elements.
        """
        if [array.size for array in arrays] != self._sizes:
            raise OffloadError(
                "the module passes tensors of other sizes to its program; partition it again"
            )
        tensors = dict(zip(self.inputs, arrays, strict=True))
        with self._lock:
            for segment, loads in enumerate(self._loads):
                stored = self._program.run(segment, {name: tensors[name] for name in loads})
                for name, array in stored.items():
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
        description = as_object(read_json(files[DESCRIPTION]))
        version = description[formats.OFFLOADED.key]
    except (KeyError, ValueError):
        raise OffloadError("the module contains no valid program; partition it again") from None
    if refusal := formats.OFFLOADED.refusal(DESCRIPTION, version):
        raise OffloadError(refusal)
    return description


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
"""Name of the global TVM function that compiled modules call to run a program."""
KEPT = 64
"""Maximum number of programs that are kept in memory. The least recently used program is dropped
first."""

_programs: OrderedDict[str, HostProgram] = OrderedDict()
_lock = threading.Lock()


def register() -> None:
    """Register the packed function `run` with TVM in this process.

    `partition_for_vta` calls this function. A process that loads an exported module has to call it
    before it creates the `VirtualMachine`.
    """
    tvm_ffi.register_global_func(RUN, run, override=True)


def run(digest: str, content: Any, *tensors: Any) -> None:
    """Run a program. TVM calls this as a packed function.

    Args:
        digest: SHA-256 of the program as hexadecimal text.
        content: the serialised program as a uint8 tensor of shape (bytes,).
        tensors: int8 tensors: the inputs, followed by the outputs, which are written in place.

    Raises:
        ValueError: the program is damaged or the tensors do not fit it. This exception type is used
            because TVM passes it on to its caller.
    """
    try:
        program = open_program(digest, content)
        count = len(program.inputs)
        arrays = [np.from_dlpack(tensor) for tensor in tensors]
        if len(arrays) != count + len(program.outputs):
            raise ValueError(
                f"{len(arrays)} tensors were passed to a program with {count} inputs and "
                f"{len(program.outputs)} outputs; partition the module again"
            )
        for array, output in zip(arrays[count:], program.run(arrays[:count]), strict=True):
            array[...] = output
    except TilewrightError as error:
        raise ValueError(str(error)) from None


def open_program(digest: str, content: Any) -> HostProgram:
    """Return the program with the given digest. Programs stay in memory for later calls.

    Args:
        digest: SHA-256 of the program as hexadecimal text.
        content: the serialised program as a uint8 tensor of shape (bytes,). It is read only if the
            program is not in memory.

    Returns:
        The program.

    Raises:
        OffloadError: the digest does not match the bytes, or the program is damaged.
    """
    with _lock:
        if digest not in _programs:
            data = np.from_dlpack(content).tobytes()
            if hashlib.sha256(data).hexdigest() != digest:
                raise OffloadError(
                    "the program in the module was changed after the partition; partition "
                    "the module again"
                )
            _programs[digest] = HostProgram(data)
            while len(_programs) > KEPT:
                _programs.popitem(last=False)
        _programs.move_to_end(digest)
        return _programs[digest]
