"""A network in integers: layers that an accelerator runs, and islands of CPU operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.core.tvm_types import RelaxFunction
from tilewright.networks.partition.region_models import RegionModel
from tilewright.targets.capabilities import Blocks
from tilewright.targets.layer import ChannelSlice, Layer, Value


@dataclass(frozen=True, eq=False)
class CpuIsland:
    """Operators between layers that the CPU runs as one function.

    Attributes:
        name: name of the island.
        inputs: names of the values that it reads, in the order of the function's parameters.
        outputs: names of the values that it writes, in the order of the function's results.
        nodes: (name, type) of the source model's operators.
        function: the Relax function, for `networks.relax.cpu_subgraphs`.
        written: operator that each variable of the function is a result of, by name of the
            variable.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...]
    function: RelaxFunction
    written: Mapping[str, str] = field(default_factory=dict)


Step = Layer | CpuIsland
"""One step of a network: an accelerator layer or a CPU island."""


@dataclass(frozen=True, eq=False)
class IntegerGraph:
    """A quantised network as accelerator layers and CPU islands.

    Layers read and write int8 values (`targets.layer`). A conv2d or max_pool reads an image (n, c,
    h, w). A dense layer reads rows × channels, where all dimensions except the last are rows. A
    conv2d whose data do not have the workload's four dimensions also reads rows × channels: row
    `pixel · batch + b` is pixel (b, :, pixel, 0) of its image, where `batch` is that of the
    workload, and rows after the last are ignored. A dense layer with one row that reads an image
    (1, c, h, w) reads it as it is packed in blocks of channels, in the order (⌈c/block⌉, h, w,
    block).

    Attributes:
        name: name of the network.
        inputs: inputs of the source model, in its order and element types.
        outputs: outputs of the source model, in its order and element types.
        values: all tensors by name: inputs, outputs and those between steps.
        steps: the steps in execution order. Every value is written before it is read.
        quantised: int8 values that the host quantises from a float input: value name to input name.
        results: the value that holds each output, by output name. The host dequantises an int8
            value if the output is float, and reshapes it (row-major).
        blocks: block sizes of the accelerator.
        macs: multiply-accumulates of the source model, wherever they run.
        left: operators that stay on the CPU although accelerators may support them: name to reason.
        slices: values that are contained in other values, so that nothing is copied.
        lost: layers whose weights were rounded again: name to signal-to-noise ratio in decibels.
        regions: onnxruntime regions that islands call.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    values: Mapping[str, Value]
    steps: tuple[Step, ...]
    quantised: Mapping[str, str]
    results: Mapping[str, str]
    blocks: Blocks
    macs: int
    left: Mapping[str, str] = field(default_factory=dict)
    slices: tuple[ChannelSlice, ...] = ()
    lost: Mapping[str, float] = field(default_factory=dict)
    regions: tuple[RegionModel, ...] = ()

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The accelerator layers in execution order."""
        return tuple(step for step in self.steps if isinstance(step, Layer))

    @cached_property
    def islands(self) -> tuple[CpuIsland, ...]:
        """The CPU islands in execution order."""
        return tuple(step for step in self.steps if isinstance(step, CpuIsland))

    def segments(self) -> Sequence[tuple[Layer, ...]]:
        """Return the maximal sequences of layers without CPU work in between."""
        runs: list[list[Layer]] = [[]]
        for step in self.steps:
            if isinstance(step, Layer):
                runs[-1].append(step)
            else:
                runs.append([])
        return [tuple(run) for run in runs if run]
