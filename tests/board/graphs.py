"""Small hand-written networks and their expected outputs, for tests of the board runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.artifact_types import HostStep, LayerGraph, Pick
from tilewright.targets.im2col import Unfold
from tilewright.targets.layer import Layer, Scale, Value
from tilewright.targets.vta.lowering.tensor_packing import reference
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, parse_workload

Tensor = NDArray[np.int8]
PYNQ = VtaSpec.load("vta-pynq")
RELU = "bias, >> 8, min 127, max 0"
BY_CHANNEL = "bias, >> channel 6, min 127, max 0"
SIGNED = "bias, >> 8, min 127, max -128"


@dataclass(frozen=True, eq=False)
class Example:
    """A layer graph for one machine. Its host steps negate their input."""

    graph: LayerGraph
    spec: VtaSpec = PYNQ

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that are read but written by no step."""
        written = {step.output for step in self.graph.layers} | {
            name for step in self.graph.steps if isinstance(step, HostStep) for name in step.writes
        }
        read = [name for step in self.graph.layers for name in _reads(step)]
        return tuple(dict.fromkeys(name for name in read if name not in written))

    def drawn(self, seed: int) -> dict[str, Tensor]:
        """Draw random inputs from the full int8 range."""
        rng = np.random.default_rng(seed)
        return {
            name: rng.integers(-128, 128, self.graph.values[name].shape).astype(np.int8)
            for name in self.inputs
        }

    def expected(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute all tensors with plain integer arithmetic."""
        tensors = dict(inputs)
        for step in self.graph.steps:
            if isinstance(step, HostStep):
                for source, name in zip(step.reads, step.writes, strict=True):
                    tensors[name] = negated(tensors[source])
            else:
                shape = self.graph.values[step.output].shape
                tensors[step.output] = computed(step, tensors, self.spec).reshape(shape)
        return tensors

    def random_picks(self, seed: int) -> list[Pick]:
        """Draw a schedule of the extended space for each layer."""
        return [some_pick(layer.workload, seed, self.spec) for layer in self.graph.layers]


def _reads(layer: Layer) -> list[str]:
    return [name for name in (layer.data, layer.residual, layer.weight_from) if name]


def negated(tensor: Tensor) -> Tensor:
    """Return the negated int8 tensor, as the host steps of these networks compute it."""
    return np.clip(-tensor.astype(np.int64), -128, 127).astype(np.int8)


def computed(layer: Layer, tensors: Mapping[str, Tensor], spec: VtaSpec) -> Tensor:
    """Compute the output of one layer with the reference of its workload."""
    w, data = layer.workload, tensors[layer.data].astype(np.int64)
    if layer.unfold is not None:
        data = layer.unfold.data(data)
    if w.operator == "dense" and data.ndim == 4:
        _, c, h, wide = data.shape
        block = spec.block_in
        data = data.reshape(1, c // block, block, h, wide).transpose(0, 1, 3, 4, 2)
    data = data.reshape(w.batch, w.in_channels, w.height, w.width)
    given = {"data": data}
    if layer.weight is not None:
        given["weight"] = layer.weight.astype(np.int64)
    if layer.weight_from is not None:
        rows = tensors[layer.weight_from].astype(np.int64)
        given["weight"] = rows.reshape(w.out_channels, w.in_channels, 1, 1)
    if layer.bias is not None:
        given["bias"] = layer.bias.astype(np.int64)
    if layer.shifts is not None:
        given["shr_channel"] = layer.shifts.astype(np.int64)
    if layer.residual is not None:
        given["residual"] = (
            tensors[layer.residual]
            .astype(np.int64)
            .reshape(w.batch, w.out_channels, w.out_height, w.out_width)
        )
    return reference(w, spec.machine, given).astype(np.int8)


@cache
def some_pick(workload: Workload, seed: int, spec: VtaSpec = PYNQ, space: str = "extended") -> Pick:
    """Draw a random schedule that lowers to a program."""
    target = VtaTarget(spec, "template" if space == "template" else "extended")
    whole = target.space(workload)
    rows = whole.unravel(np.random.default_rng(seed).integers(0, whole.size, 200))
    lowered = target.lower(workload, rows)
    row = rows[int(np.flatnonzero(lowered.ok)[0])]
    return Pick(whole.name, tuple(int(index) for index in row))


def layer(
    name: str, data: str, output: str, text: str, epilogue: str = RELU, **rest: object
) -> Layer:
    """Make a layer with random weights, and with a bias and shifts if its epilogue has them."""
    w = parse_workload(text, epilogue)
    rng = np.random.default_rng([len(name), *name.encode()])
    shape = (w.out_channels, w.in_channels // w.groups, w.kernel_h, w.kernel_w)
    weight = rng.integers(-30, 31, shape).astype(np.int8)
    bias = rng.integers(-4000, 4000, w.out_channels).astype(np.int32)
    shifts = rng.integers(6, 12, w.out_channels).astype(np.int32)
    made = Layer(
        name, (name,), "Conv", w, data, output, weight=weight, macs=w.macs,
        bias=bias if "bias" in epilogue else None,
        shifts=shifts if "channel" in epilogue else None,
    )  # fmt: skip
    if w.operator == "max_pool":
        made = replace(made, weight=None, operator="MaxPool")
    return replace(made, **rest)  # type: ignore[arg-type]


def values(**shapes: Sequence[int]) -> dict[str, Value]:
    """Declare int8 tensors of the given shapes, all with the same scale."""
    scale = Scale.power_of_two(-5)
    return {name: Value(name, tuple(shape), "int8", scale) for name, shape in shapes.items()}


def graph(
    steps: Sequence[Layer | HostStep], tensors: Mapping[str, Value], *outputs: str
) -> LayerGraph:
    """Make a graph whose inputs and outputs are passed as int8, without conversion."""
    return LayerGraph(tuple(steps), tensors, outputs, {}, {})


def small_cnn() -> Example:
    """Return a small CNN: unfolded and strided convolutions, a pool, and a dense layer."""
    first = parse_workload("conv2d:n=1,c=1,h=12,w=12,o=16,k=3,p=1", RELU)
    fold = Unfold.for_patches(first, 3, 3)
    steps = [
        layer("conv1", "x", "a", str(fold.workload(first)), unfold=fold),
        layer("conv2", "a", "b", "conv2d:c=16,h=12,w=12,o=32,k=3,s=2,p=1", BY_CHANNEL),
        layer("pool", "b", "c", "max_pool:c=32,h=6,w=6,k=2,s=2", ""),
        layer("fc", "c", "y", "dense:n=1,c=288,o=10", SIGNED),
    ]
    shapes = values(x=(1, 1, 12, 12), a=(1, 16, 12, 12), b=(1, 32, 6, 6), c=(1, 32, 3, 3),
                    y=(1, 10))  # fmt: skip
    return Example(graph(steps, shapes, "y"))


def skip() -> Example:
    """Return a graph with a residual over two layers, a depthwise layer and a second output."""
    steps = [
        layer("one", "x", "a", "conv2d:c=32,h=9,w=9,o=32,k=3,p=1"),
        layer("two", "a", "b", "conv2d:c=32,h=9,w=9,o=32,k=3,p=1,g=32", SIGNED),
        layer("three", "b", "c", "conv2d:c=32,h=9,w=9,o=32,k=1",
              "bias, residual 3, >> 8, min 127, max -128", residual="a"),
        layer("four", "c", "y", "conv2d:c=32,h=9,w=9,o=48,k=1"),
    ]  # fmt: skip
    shapes = values(x=(1, 32, 9, 9), a=(1, 32, 9, 9), b=(1, 32, 9, 9), c=(1, 32, 9, 9),
                    y=(1, 48, 9, 9))  # fmt: skip
    return Example(graph(steps, shapes, "c", "y"))


def around_the_host() -> Example:
    """Return a graph whose accelerator layers alternate with host steps.

    It has matrix products, an activation that serves as weights, and a tensor that is used both
    before and after the host step.
    """
    steps = [
        layer("q", "x", "q", "dense:n=20,c=48,o=32", SIGNED),
        layer("k", "x", "k", "dense:n=20,c=48,o=32", SIGNED),
        HostStep("negate", ("k",), ("nk",)),
        layer("qk", "q", "s", "dense:n=20,c=32,o=20", ">> 7, min 127, max -128",
              weight=None, weight_from="nk"),
        layer("out", "s", "y", "dense:n=20,c=20,o=48",
              "bias, residual 2, >> 7, min 127, max -128", residual="x"),
    ]  # fmt: skip
    shapes = values(x=(1, 20, 48), q=(1, 20, 32), k=(1, 20, 32), nk=(1, 20, 32), s=(1, 20, 20),
                    y=(1, 20, 48))  # fmt: skip
    return Example(graph(steps, shapes, "y"))


EXAMPLES = {"cnn": small_cnn, "skip": skip, "host": around_the_host}
