"""Runs an artifact: alternates between segments on the accelerator and islands on the CPU.

A segment is a sequence of layers that the accelerator runs as one program. An island is a group of
operators that the CPU runs between segments.
"""

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
"""Types of network inputs and outputs that are not dense tensors. onnxruntime accepts and returns
them."""
RunCpu = Callable[[str, Sequence[Array]], Sequence[Array]]
"""Function that runs an island, which is a group of operators on the CPU. Its arguments are the
name of the island and the input tensors. It returns the output tensors."""
RunSegment = Callable[[int, Mapping[str, Array]], Mapping[str, Array]]
"""Function that runs a segment, which is a sequence of layers on the accelerator. Its arguments are
the index of the segment and the tensors to load, by name. It returns the stored tensors, by
name."""


@dataclass(frozen=True)
class LayerTime:
    """Cycles of a layer on the accelerator.

    Attributes:
        name: name of the layer.
        names: names of the fused operators.
        operator: type of the operator.
        macs: multiply-accumulates.
        cycles: cycles within the program of its segment, where the layer overlaps with its
            neighbours.
        alone: cycles of the layer when it runs alone.
        roofline: lower bound in cycles.
        segment: index of its segment, a sequence of layers that the accelerator runs as one
            program.
    """

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
    """Time and energy of an inference on an accelerator.

    A segment is a sequence of layers that the accelerator runs as one program. An island is a group
    of operators that the CPU runs between segments.

    Attributes:
        layers: cycles of each layer.
        segments: cycles of each segment's program.
        clock_hz: clock frequency of the accelerator in Hz.
        cpu_seconds: seconds of each island on this machine's CPU, by island name.
        microjoules: estimated energy of the accelerator and its memory; None if the target has no
            energy model.
    """

    layers: tuple[LayerTime, ...]
    segments: tuple[int, ...]
    clock_hz: float
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    microjoules: float | None = None

    @property
    def cycles(self) -> int:
        """Total cycles of all segments, the sequences of layers on the accelerator."""
        return sum(self.segments)

    @property
    def milliseconds(self) -> float:
        """Time of the accelerator in milliseconds."""
        return self.cycles / self.clock_hz * 1e3

    @property
    def cpu_milliseconds(self) -> float:
        """Time of the operators that the CPU runs, in milliseconds on this machine."""
        return sum(self.cpu_seconds.values()) * 1e3


@dataclass(frozen=True)
class Island:
    """A group of operators that the CPU runs between sequences of layers on the accelerator.

    Attributes:
        name: name of the island.
        inputs: names of the tensors that it reads.
        outputs: names of the tensors that it writes.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Order:
    """Execution order of an artifact: segments on the accelerator and islands on the CPU.

    A segment is a sequence of layers, and an island is a group of operators.

    Attributes:
        steps: the steps, each ("segment", index of the segment) or ("cpu", index of the island).
        loads: names of the tensors that each segment loads.
        islands: the islands.
        inputs: inputs of the network.
        outputs: outputs of the network.
        values: shape and element type of the tensors that pass between steps, by name.
        quantised: for each int8 tensor that the host quantises, the name of its float source.
        results: for each output, the name of the tensor from which it is converted.
    """

    steps: tuple[tuple[str, int], ...]
    loads: Sequence[tuple[str, ...]]
    islands: tuple[Island, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    values: Mapping[str, Value]
    quantised: Mapping[str, str]
    results: Mapping[str, str]


class Inference:
    """An inference in progress, whose steps are run one by one.

    The steps run in order. Steps of other inferences may run in between.

    Args:
        order: the steps of the artifact.
        inputs: input arrays by name.

    Attributes:
        cpu_seconds: seconds of each island that has run, on this machine, by island name.

    Raises:
        InputError: an input is missing or has another shape or type.
    """

    def __init__(self, order: Order, inputs: Mapping[str, Array]) -> None:
        self._order = order
        self._tensors: dict[str, Array] = dict(check_arrays(order.inputs, inputs))
        self.cpu_seconds: dict[str, float] = {}

    def run(self, step: int, segment: RunSegment, cpu: RunCpu) -> None:
        """Run one step.

        A step is a sequence of layers on the accelerator or a group of operators on the CPU.

        Args:
            step: index of the step.
            segment: function that runs a segment.
            cpu: function that runs an island.
        """
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
        """Return the outputs by name, in the shapes of the network, after all steps have run."""
        order = self._order
        return {value.name: _result(order, self._tensors, value) for value in order.outputs}


def infer(
    order: Order, program: BuiltProgram, cpu: RunCpu, inputs: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, float]]:
    """Run one inference.

    Args:
        order: the steps of the artifact.
        program: the accelerator's program.
        cpu: function that runs an island, a group of operators on the CPU.
        inputs: input arrays by name, in the shapes of the network.

    Returns:
        The outputs by name, and the seconds of each island by name.

    Raises:
        InputError: an input is missing or has another shape or type.
    """
    inference = Inference(order, inputs)
    for step in range(len(order.steps)):
        inference.run(step, program.run, cpu)
    return inference.outputs(), inference.cpu_seconds


class ExactInputs:
    """Fast check of whether input arrays can be used without conversion.

    It keeps the overhead small for networks that take only microseconds.

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
        """Return whether arrays have exactly the expected names, shapes and element types.

        Args:
            inputs: arrays by name.

        Returns:
            True if they can be used without conversion. Always False for networks with inputs that
            are not tensors.
        """
        if self._has_containers or len(inputs) != self._count:
            return False
        for name, shape, dtype in self._known:
            array = inputs.get(name)
            if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
                return False
        return True


def check_arrays(wanted: Sequence[Value], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Check the inputs of a network.

    float16 arrays are converted where float32 is expected, and arrays of text to `str` objects.

    Args:
        wanted: the inputs of the network.
        inputs: arrays by name.

    Returns:
        The arrays by name, in the order of `wanted`.

    Raises:
        InputError: an input is missing, unknown, or has another shape or type.
    """
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
            continue  # onnxruntime checks its content
        if array is None:
            problems.append(f"'{value.name}' is missing")
        elif not isinstance(array, (np.ndarray, np.generic)):
            problems.append(f"'{value.name}' is not an array but {type(array).__name__}")
        elif array.shape != value.shape:
            problems.append(
                f"'{value.name}' has shape {_sizes(array.shape)} instead of {_sizes(value.shape)}"
            )
        elif array.dtype != (np.dtype(object) if value.dtype == TEXT else np.dtype(value.dtype)):
            problems.append(f"'{value.name}' has type {array.dtype} instead of {value.dtype}")
    if problems:
        listed = ", ".join(f"{v.name} ({v.dtype} {_sizes(v.shape)})" for v in wanted)
        raise InputError(f"{problems[0]}; the network expects {listed}")
    return {value.name: inputs[value.name] for value in wanted}


def as_text_objects(array: Array) -> Array:
    """Convert an array of text to `str` objects, as onnxruntime uses them.

    Other arrays are returned unchanged.
    """
    return array.astype(object) if array.dtype.kind == "U" else array


def as_arrays(outputs: Mapping[str, Any]) -> dict[str, Array]:
    """Convert outputs of a network, which may be sequences or maps, to arrays by name.

    A sequence gives one array per element (`name.0`, `name.1`, …), and a map gives `name.keys` and
    `name.values`. Absent optional values are left out.
    """
    arrays: dict[str, Array] = {}
    for name, value in outputs.items():
        if isinstance(value, Mapping):
            parts = {"keys": np.array(list(value)), "values": np.array(list(value.values()))}
            arrays |= {f"{name}.{part}": array for part, array in parts.items()}
        elif isinstance(value, list):
            arrays |= as_arrays({f"{name}.{place}": item for place, item in enumerate(value)})
        elif value is not None:
            arrays[name] = np.asarray(value)
    return arrays


def layer_times(rows: Sequence[LayerTime], times: Sequence[StreamTimes]) -> tuple[LayerTime, ...]:
    """Return copies of the layers with the cycles that they take within their segments.

    Args:
        rows: the layers.
        times: cycles of each segment and of its layers.
    """
    cycles = [layer for stream in times for layer in stream.layers]
    return tuple(
        LayerTime(r.name, r.names, r.operator, r.macs, spent, r.alone, r.roofline, r.segment)
        for r, spent in zip(rows, cycles, strict=True)
    )


def _sizes(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _tensor(order: Order, tensors: dict[str, Array], name: str) -> Array:
    """Return a tensor by name. If it does not exist yet, quantise it from its float source.

    Args:
        order: the steps of the artifact.
        tensors: the tensors that exist, by name. A quantised tensor is added to them.
        name: name of the tensor.

    Raises:
        InputError: the float source contains NaN, which int8 cannot represent. The C runtime of a
            board also rejects NaN.
    """
    if name not in tensors:
        value, source = order.values[name], order.quantised[name]
        real = tensors[source]
        if real.dtype.kind == "f" and np.isnan(real).any():
            raise InputError(f"'{source}' contains NaN, which int8 cannot represent; remove it")
        tensors[name] = to_int8(real, value.scale).reshape(value.shape)
    return tensors[name]


def _result(order: Order, tensors: dict[str, Array], value: Value) -> Array:
    """Return an output of the network as an array with the output's shape and element type.

    An output that only exists as int8 is converted to its own element type.

    Args:
        order: the steps of the artifact.
        tensors: the tensors that exist, by name.
        value: name, shape and element type of the output.
    """
    result = tensors.get(value.name)
    if result is None or (result.dtype == np.int8 and value.dtype != "int8"):
        result = _tensor(order, tensors, order.results[value.name])
        if result.dtype == np.int8 and value.dtype != "int8":
            held = order.values[order.results[value.name]]
            result = from_int8(result.view(np.int8), value.scale or held.scale, value.dtype)
    return result.reshape(value.shape).astype(value.dtype, copy=False)


Ports = Sequence[tuple[Sequence[Value], Sequence[Value]]]
"""Tensors that each segment exchanges with the host: one pair of loaded tensors and stored tensors
per segment."""
_OF_INT8 = ("int8", "uint8")


def check_order(order: Order, ports: Ports) -> None:
    """Check that an execution order is consistent with the segments' inputs and outputs.

    A segment is a sequence of layers that the accelerator runs as one program.

    Args:
        order: the execution order.
        ports: the tensors that each segment loads and stores.

    Raises:
        ValueError: a step or a tensor does not fit; the message names it.
    """
    segments = [number for kind, number in order.steps if kind == "segment"]
    islands = [number for kind, number in order.steps if kind == "cpu"]
    if len(segments) + len(islands) != len(order.steps):
        raise ValueError("a step is neither a segment nor an operation of the CPU")
    if segments != list(range(len(ports))) or sorted(islands) != list(range(len(order.islands))):
        raise ValueError(
            "its steps do not contain each segment and each CPU operation exactly once"
        )
    _Tensors(order).check(ports)


class _Tensors:
    """Checker of an execution order, which tracks the tensors that exist after each step.

    Attributes:
        order: the execution order to check.
        known: number of elements and element type of each tensor that exists, by name.
    """

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
            raise ValueError(f"segment {number} reads other tensors than its description lists")
        for port in loads:
            if self._need(port.name)[0] != _elements(port):
                raise ValueError(f"segment {number} reads '{port.name:.60}' with another size")
        for port in stores:
            value = self.order.values.get(port.name)
            if value is not None and _elements(value) != _elements(port):
                raise ValueError(f"segment {number} writes '{port.name:.60}' with another size")
            self.known[port.name] = _elements(port), port.dtype

    def _need(self, name: str) -> tuple[int, str]:
        """Return the number of elements and the element type of a tensor that a step reads.

        Args:
            name: name of the tensor. If it does not exist yet, the host has to be able to quantise
                it.

        Raises:
            ValueError: the tensor does not exist and cannot be quantised.
        """
        if name not in self.known:
            value = self._value(name)
            count, dtype = self.known.get(self.order.quantised.get(name, ""), (-1, ""))
            if count != _elements(value):
                raise ValueError(f"'{name:.60}' is needed but not computed")
            if dtype not in _OF_INT8 and value.scale is None:
                raise ValueError(f"'{name:.60}' has no scale for quantisation")
            self.known[name] = count, "int8"
        return self.known[name]

    def _result(self, value: Value) -> None:
        """Check that an output of the network exists or can be converted from its int8 tensor.

        Args:
            value: name, shape and element type of the output.

        Raises:
            ValueError: the output cannot be produced, or has another size.
        """
        result = self.known.get(value.name)
        if result is None or (result[1] == "int8" and value.dtype != "int8"):
            held = self.order.results.get(value.name, "")
            result = self._need(held)
            scale = value.scale or self._value(held).scale
            if result[1] == "int8" and value.dtype not in _OF_INT8 and scale is None:
                raise ValueError(f"output '{value.name:.60}' has no scale")
        if result[0] != _elements(value):
            raise ValueError(f"output '{value.name:.60}' has a different size")

    def _value(self, name: str) -> Value:
        if name not in self.order.values:
            raise ValueError(f"the tensor '{name:.60}' does not exist")
        return self.order.values[name]


def _elements(value: Value) -> int:
    return prod(value.shape)
