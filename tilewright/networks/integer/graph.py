"""Defines a network in integers: layers for an accelerator, and islands of CPU operators."""

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
    """Operators between layers that the CPU runs, as one function of the tensors it reads.

    `inputs` and `outputs` name values, in the order of the function's parameters and results;
    `nodes` are the source model's operators as (name, type). `function` is Relax's, for
    `networks.relax.cpu_subgraphs`; `written` says by the names of its variables which operator each
    is the result of.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...]
    function: RelaxFunction
    written: Mapping[str, str] = field(default_factory=dict)


Step = Layer | CpuIsland


@dataclass(frozen=True, eq=False)
class IntegerGraph:
    """A quantised network. `steps` run in order; every value is written before it is read.

    `inputs` and `outputs` are those of the source model, in its element types and order. `values`
    are all tensors by name: the inputs, the outputs, and those between steps.
    `quantised` names the int8 values that are a float input, quantised by the host, and that input;
    `results` the value that each output is: itself where a step writes it, else an int8 value that
    the host dequantises where the output is float, and shapes as the output (row-major).

    Layers read and write int8 values (`targets.layer`). A conv2d or max_pool reads an image (n, c,
    h, w), a dense rows × channels, rows being whatever precedes the last dimension. A conv2d whose
    data has no four dimensions, or others than the workload's, reads rows × channels, too: row
    `pixel · batch + b` is pixel (b, :, pixel, 0) of its image, `batch` that of the workload, and
    rows beyond the last are nothing. A dense layer of one row that reads an image (1, c, h, w)
    reads it as it lies packed in blocks of channels: of (⌈c/block⌉, h, w, block) numbers.
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
    """Multiply-accumulates of the source model, wherever they run."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Why an operator that an accelerator could be given is with the CPU, by its name."""
    slices: tuple[ChannelSlice, ...] = ()
    """Values that lie inside others: nobody copies them."""
    lost: Mapping[str, float] = field(default_factory=dict)
    """Layers with weights that were rounded anew, by name: the power of the exact weights over that
    of what rounding took, in decibels."""
    regions: tuple[RegionModel, ...] = ()
    """What islands call onnxruntime for."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """What the accelerator runs, in order."""
        return tuple(step for step in self.steps if isinstance(step, Layer))

    @cached_property
    def islands(self) -> tuple[CpuIsland, ...]:
        """What the CPU runs, in order."""
        return tuple(step for step in self.steps if isinstance(step, CpuIsland))

    def segments(self) -> Sequence[tuple[Layer, ...]]:
        """The runs of layers without CPU work between."""
        runs: list[list[Layer]] = [[]]
        for step in self.steps:
            if isinstance(step, Layer):
                runs[-1].append(step)
            else:
                runs.append([])
        return [tuple(run) for run in runs if run]
