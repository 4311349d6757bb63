"""A quantised network in integers, which consists of accelerator layers and CPU islands."""

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
    """A group of operators between accelerator layers that the CPU runs as one function.

    Attributes:
        name: name of the island.
        inputs: names of the values that the island reads, in the order of the function's
            parameters.
        outputs: names of the values that the island writes, in the order of the function's results.
        nodes: (name, ONNX type) of the source model's operators in the island.
        function: the Relax function, which `networks.relax.cpu_subgraphs` compiles.
        written: name of the source model's operator that computes each variable of the function, by
            name of the variable.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...]
    function: RelaxFunction
    written: Mapping[str, str] = field(default_factory=dict)


Step = Layer | CpuIsland
"""Step of a network: a layer on the accelerator, or a CPU island, which is a group of operators on
the CPU."""


@dataclass(frozen=True, eq=False)
class IntegerGraph:
    """A quantised network as a sequence of accelerator layers and CPU islands.

    Layers (`targets.layer`) read and write int8 values. The shape of the value that a layer reads
    depends on the layer's operator:

    - A conv2d or max_pool reads an image (n, c, h, w).
    - A dense layer reads rows × channels: the last dimension is the channels, and all other
      dimensions together are the rows.
    - A conv2d also reads rows × channels if the value does not have the four dimensions of its
      workload. Row `pixel · batch + b` is then pixel (b, :, pixel, 0) of the image, where `batch`
      is the batch size of the workload. Pixels after the last row of the value are padding, whose
      results are dropped.
    - A dense layer with one row also reads an image (1, c, h, w), flattened in the order in which
      the image is packed in blocks of channels: (⌈c/block⌉, h, w, block).

    Attributes:
        name: name of the network.
        inputs: inputs of the source model, with their order and element types.
        outputs: outputs of the source model, with their order and element types.
        values: all tensors by name: inputs, outputs and values between steps.
        steps: the steps in execution order. Every value is written before it is read.
        quantised: int8 values that the host computes by quantising a float input, as
            a mapping from the name of the value to the name of the input.
        results: name of the value that contains each output, by output name. The host dequantises
            an int8 value if the output is float, and reshapes it in row-major order.
        blocks: block sizes of the accelerator.
        macs: multiply-accumulates of the source model, on the accelerator and the CPU together.
        left: reasons why operators that accelerators may support stay on the CPU, by operator name.
        slices: values that are a part of another value in memory, so that nothing is copied.
        lost: signal-to-noise ratio in dB of each layer whose weights were rounded again, by layer
            name.
        regions: subgraphs that onnxruntime runs. Islands call them.
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
        """Return the maximal sequences of layers without a CPU island in between."""
        runs: list[list[Layer]] = [[]]
        for step in self.steps:
            if isinstance(step, Layer):
                runs[-1].append(step)
            else:
                runs.append([])
        return [tuple(run) for run in runs if run]
