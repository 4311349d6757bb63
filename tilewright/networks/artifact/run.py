"""Runs an artifact: the accelerator's segments and the CPU's islands by turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.errors import InputError
from tilewright.networks.sample_values import TEXT
from tilewright.targets.artifact_types import BuiltProgram, StreamTimes
from tilewright.targets.layer import Value, from_int8, to_int8

Array = NDArray[np.generic]
CONTAINERS = ("sequence", "map", "optional", "sparse_tensor")
"""Element types of inputs and outputs that are no tensors, which onnxruntime takes and gives."""
RunCpu = Callable[[str, Sequence[Array]], Sequence[Array]]
"""Runs an island, by name, on the tensors it reads; gives those it writes."""
RunSegment = Callable[[int, Mapping[str, Array]], Mapping[str, Array]]
"""Runs a segment, by number, on the tensors it loads; gives those it stores."""


@dataclass(frozen=True)
class LayerTime:
    """A layer's cycles: in its stream, by itself, and what no schedule of it beats."""

    name: str
    names: tuple[str, ...]
    operator: str
    macs: int
    cycles: int
    alone: int
    roofline: int
    segment: int


@dataclass(frozen=True)
class Profile:
    """Where an inference spends its time. Cycles are those of whole streams, one a segment;
    `cpu_seconds` are by island, on this machine's CPU."""

    layers: tuple[LayerTime, ...]
    segments: tuple[int, ...]
    clock_hz: float
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    microjoules: float | None = None
    """What the accelerator and its memory spend, by an estimate; None where the target knows
    none."""

    @property
    def cycles(self) -> int:
        """Of all segments."""
        return sum(self.segments)

    @property
    def milliseconds(self) -> float:
        """Of the accelerator."""
        return self.cycles / self.clock_hz * 1e3

    @property
    def cpu_milliseconds(self) -> float:
        """Of what the CPU computes between segments, on this machine."""
        return sum(self.cpu_seconds.values()) * 1e3


@dataclass(frozen=True)
class Island:
    """Work of the CPU: the tensors it reads and writes."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Order:
    """What runs after what: ("segment", number) and ("cpu", number); the tensors of the border."""

    steps: tuple[tuple[str, int], ...]
    loads: Sequence[tuple[str, ...]]
    islands: tuple[Island, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    values: Mapping[str, Value]
    quantised: Mapping[str, str]
    results: Mapping[str, str]


class Inference:
    """One inference on its way: its steps run one after the other, and steps of other inferences
    may run between them. `cpu_seconds` are those of each island, on this machine."""

    def __init__(self, order: Order, inputs: Mapping[str, Array]) -> None:
        """Raises `InputError` for other names, shapes or types than the network's."""
        self._order = order
        self._tensors: dict[str, Array] = dict(check_arrays(order.inputs, inputs))
        self.cpu_seconds: dict[str, float] = {}

    def run(self, step: int, segment: RunSegment, cpu: RunCpu) -> None:
        """A step of the order."""
        order, tensors = self._order, self._tensors
        kind, number = order.steps[step]
        if kind == "segment":
            wanted = {name: _tensor(order, tensors, name) for name in order.loads[number]}
            for name, array in segment(number, wanted).items():
                shape = order.values[name].shape if name in order.values else array.shape
                tensors[name] = array.reshape(shape)
            return
        island = order.islands[number]
        begun = time.perf_counter()
        made = cpu(island.name, [_tensor(order, tensors, name) for name in island.inputs])
        self.cpu_seconds[island.name] = time.perf_counter() - begun
        tensors.update(zip(island.outputs, made, strict=True))

    def outputs(self) -> dict[str, Array]:
        """Arrays by name, in the shapes of the order's outputs, once all steps are done."""
        order = self._order
        return {value.name: _result(order, self._tensors, value) for value in order.outputs}


def infer(
    order: Order, program: BuiltProgram, cpu: RunCpu, inputs: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, float]]:
    """One inference: outputs by name, and the seconds of each island. Raises `InputError` for other
    names, shapes or types than the network's."""
    inference = Inference(order, inputs)
    for step in range(len(order.steps)):
        inference.run(step, program.run, cpu)
    return inference.outputs(), inference.cpu_seconds


class ExactInputs:
    """The names, shapes and element types of arrays that need no conversion, ready to compare:
    inferences of microseconds check their inputs, too.

    Args:
        wanted: the inputs of a network.
    """

    def __init__(self, wanted: Sequence[Value]) -> None:
        self._known = [
            (value.name, value.shape, np.dtype(object if value.dtype == TEXT else value.dtype))
            for value in wanted
            if value.dtype not in CONTAINERS
        ]
        self._count = len(wanted)
        self._has_containers = len(self._known) < self._count

    def fit(self, inputs: Mapping[str, Array]) -> bool:
        """Return whether `inputs` are exactly the wanted arrays. False for containers."""
        if self._has_containers or len(inputs) != self._count:
            return False
        for name, shape, dtype in self._known:
            array = inputs.get(name)
            if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
                return False
        return True


def check_arrays(wanted: Sequence[Value], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs as they are, each of the shape that is wanted; halves for a float32 are widened.
    Raises `InputError` for what is missing or does not fit."""
    names = {value.name for value in wanted}
    inputs = dict(inputs)
    for value in wanted:
        if value.dtype == "float32" and getattr(inputs.get(value.name), "dtype", "") == "float16":
            inputs[value.name] = inputs[value.name].astype(np.float32)
        if value.dtype == TEXT and getattr(inputs.get(value.name), "dtype", None) is not None:
            inputs[value.name] = as_text_objects(inputs[value.name])
    problems = [f"there is no input '{name}'" for name in inputs if name not in names]
    for value in wanted:
        array = inputs.get(value.name)
        if value.dtype in CONTAINERS and value.name in inputs:
            continue  # onnxruntime looks into it
        if array is None:
            problems.append(f"'{value.name}' is missing")
        elif not isinstance(array, (np.ndarray, np.generic)):
            problems.append(f"'{value.name}' is no array, but {type(array).__name__}")
        elif array.shape != value.shape:
            problems.append(
                f"'{value.name}' has shape {_sizes(array.shape)} instead of {_sizes(value.shape)}"
            )
        elif array.dtype != (np.dtype(object) if value.dtype == TEXT else np.dtype(value.dtype)):
            problems.append(f"'{value.name}' is {array.dtype} instead of {value.dtype}")
    if problems:
        listed = ", ".join(f"{v.name} ({v.dtype} {_sizes(v.shape)})" for v in wanted)
        raise InputError(f"{problems[0]}; the network takes {listed}")
    return {value.name: inputs[value.name] for value in wanted}


def as_text_objects(array: Array) -> Array:
    """Return an array of text as one of `str` objects, which onnxruntime reads and gives; any other
    array as it is."""
    return array.astype(object) if array.dtype.kind == "U" else array


def as_arrays(outputs: Mapping[str, Any]) -> dict[str, Array]:
    """Return outputs by name as arrays alone. A sequence has an array for each element, `name.0`
    and so on, and a map has `name.keys` and `name.values`."""
    found: dict[str, Array] = {}
    for name, value in outputs.items():
        if isinstance(value, Mapping):
            parts = {"keys": np.array(list(value)), "values": np.array(list(value.values()))}
            found |= {f"{name}.{part}": array for part, array in parts.items()}
        elif isinstance(value, list):
            found |= as_arrays({f"{name}.{place}": each for place, each in enumerate(value)})
        elif value is not None:
            found[name] = np.asarray(value)
    return found


def layer_times(rows: Sequence[LayerTime], times: Sequence[StreamTimes]) -> tuple[LayerTime, ...]:
    """The layers with the cycles that the streams took for them."""
    cycles = [each for stream in times for each in stream.layers]
    return tuple(
        LayerTime(r.name, r.names, r.operator, r.macs, spent, r.alone, r.roofline, r.segment)
        for r, spent in zip(rows, cycles, strict=True)
    )


def _sizes(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _tensor(order: Order, tensors: dict[str, Array], name: str) -> Array:
    """A tensor that is there, or that the host quantises first. Raises `InputError` for NaN, which
    would become a number; the C runtime of a board refuses it, too."""
    if name not in tensors:
        value, source = order.values[name], order.quantised[name]
        real = tensors[source]
        if real.dtype.kind == "f" and np.isnan(real).any():
            raise InputError(f"'{source}' has a NaN, which int8 does not have; take it out")
        tensors[name] = to_int8(real, value.scale).reshape(value.shape)
    return tensors[name]


def _result(order: Order, tensors: dict[str, Array], value: Value) -> Array:
    """An output, made of the int8 value that it is unless it is there already."""
    found = tensors.get(value.name)
    if found is None or (found.dtype == np.int8 and value.dtype != "int8"):
        found = _tensor(order, tensors, order.results[value.name])
        if found.dtype == np.int8 and value.dtype != "int8":
            held = order.values[order.results[value.name]]
            found = from_int8(found.view(np.int8), value.scale or held.scale, value.dtype)
    return found.reshape(value.shape).astype(value.dtype, copy=False)


Ports = Sequence[tuple[Sequence[Value], Sequence[Value]]]
"""Of each segment, what it takes and what it gives."""
_OF_INT8 = ("int8", "uint8")


def check_order(order: Order, ports: Ports) -> None:
    """Raises `ValueError` naming the first tensor that does not fit."""
    segments = [number for kind, number in order.steps if kind == "segment"]
    islands = [number for kind, number in order.steps if kind == "cpu"]
    if len(segments) + len(islands) != len(order.steps):
        raise ValueError("a step is neither a segment nor work of the CPU")
    if segments != list(range(len(ports))) or sorted(islands) != list(range(len(order.islands))):
        raise ValueError("its steps are not each of its segments and islands, once")
    _Tensors(order).check(ports)


class _Tensors:
    """The tensors that are there at a point of an inference, with their elements and types."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.known = {value.name: (_elements(value), value.dtype) for value in order.inputs}

    def check(self, ports: Ports) -> None:
        for kind, number in self.order.steps:
            if kind == "segment":
                self._segment(number, *ports[number])
            else:
                island = self.order.islands[number]
                for name in island.inputs:
                    self._need(name)
                for name in island.outputs:
                    value = self._value(name)
                    self.known[name] = _elements(value), value.dtype
        for value in self.order.outputs:
            self._result(value)

    def _segment(self, number: int, loads: Sequence[Value], stores: Sequence[Value]) -> None:
        if {port.name for port in loads} != set(self.order.loads[number]):
            raise ValueError(f"segment {number} takes other tensors than are said")
        for port in loads:
            if self._need(port.name)[0] != _elements(port):
                raise ValueError(f"segment {number} takes '{port.name:.60}' of another size")
        for port in stores:
            value = self.order.values.get(port.name)
            if value is not None and _elements(value) != _elements(port):
                raise ValueError(f"segment {number} gives '{port.name:.60}' of another size")
            self.known[port.name] = _elements(port), port.dtype

    def _need(self, name: str) -> tuple[int, str]:
        """A tensor that is there, or that the host quantises."""
        if name not in self.known:
            value = self._value(name)
            count, dtype = self.known.get(self.order.quantised.get(name, ""), (-1, ""))
            if count != _elements(value):
                raise ValueError(f"'{name:.60}' is needed and not there")
            if dtype not in _OF_INT8 and value.scale is None:
                raise ValueError(f"'{name:.60}' has no scale to quantise it by")
            self.known[name] = count, "int8"
        return self.known[name]

    def _result(self, value: Value) -> None:
        """An output, as it is there or as the host makes it of an int8 tensor."""
        found = self.known.get(value.name)
        if found is None or (found[1] == "int8" and value.dtype != "int8"):
            held = self.order.results.get(value.name, "")
            found = self._need(held)
            scale = value.scale or self._value(held).scale
            if found[1] == "int8" and value.dtype not in _OF_INT8 and scale is None:
                raise ValueError(f"output '{value.name:.60}' has no scale")
        if found[0] != _elements(value):
            raise ValueError(f"output '{value.name:.60}' has another size")

    def _value(self, name: str) -> Value:
        if name not in self.order.values:
            raise ValueError(f"there is no tensor '{name:.60}'")
        return self.order.values[name]


def _elements(value: Value) -> int:
    return prod(value.shape)
