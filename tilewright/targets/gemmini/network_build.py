"""Builds networks for Gemmini: converts layers and their schedules to the files of an artifact.

All layers share one memory image. A segment is a sequence of layers without work of the host in
between. The commands of a segment form one stream. The module implements
`targets.capabilities.Builds`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.files import Json
from tilewright.targets.artifact_types import Built, HostStep, LayerGraph, Pick
from tilewright.targets.gemmini.estimates import roofline_cycles
from tilewright.targets.gemmini.lowering.batch import WorkloadLowering, program_of, stream_from
from tilewright.targets.gemmini.lowering.command_encoding import CommandTable
from tilewright.targets.gemmini.lowering.geometry import MEMORY_BASE, BlockGeometry, round_up
from tilewright.targets.gemmini.lowering.memory_layout import Array, constants
from tilewright.targets.gemmini.lowering.schedule_space import TileSchedule
from tilewright.targets.gemmini.lowering.tile_fit import LoweringFailure
from tilewright.targets.gemmini.network_memory import Form, HostTensor, MemoryPlan
from tilewright.targets.gemmini.network_program import (
    COMMANDS,
    CONSTANTS,
    PROGRAM,
    GemminiProgram,
    segment_commands,
)
from tilewright.targets.gemmini.spec import DIM, GemminiSpec
from tilewright.targets.gemmini.timing import time_stream
from tilewright.targets.im2col import Unfold
from tilewright.targets.layer import Layer
from tilewright.targets.workload import Workload

WHY_NOT_BARE = (
    "only a processor can run a network on a Gemmini; 'tilewright export --format gemmini-c' "
    "writes C code for it"
)
# A value as a layer reads it: name, memory form, and rearrangement of its patches, if any.
Reading = tuple[str, Form, Unfold | None]


@dataclass(frozen=True, eq=False)
class LoweredLayer:
    """A layer of a network, with the commands that compute it.

    Attributes:
        layer: the layer.
        pick: the schedule with which the layer was lowered.
        geometry: sizes of the layer and addresses of its tensors in the network's memory.
        commands: commands of the layer, shape (n, 3) with the columns function code, first and
            second operand.
        constants: packed weights and biases, by address.
    """

    layer: Layer
    pick: Pick
    geometry: BlockGeometry
    commands: CommandTable
    constants: dict[int, Array]


def lower_layer(
    layer: Layer,
    plan: MemoryPlan,
    shapes: dict[str, tuple[int, ...]],
    spec: GemminiSpec,
    pick: Pick,
) -> LoweredLayer:
    """Lower a layer to commands, and allocate memory for those of its tensors that have none yet.

    Args:
        layer: the layer.
        plan: memory plan of the network, to which the layer's tensors are added.
        shapes: shape of each value, by name.
        spec: the machine.
        pick: the schedule. A schedule is chosen for a workload with representative constants in its
            epilogue. If it does not fit the layer's actual constants, the schedule of the vendor's
            rule is used instead.

    Raises:
        WorkloadError: the layer cannot be lowered, or the schedule belongs to a different schedule
            space.
    """
    w = layer.workload
    lowering = WorkloadLowering.for_workload(w, spec)
    if pick.space != lowering.space.name or (layer.weight is None and layer.weight_from is None):
        raise WorkloadError(
            f"{layer.name} has no schedule of the space '{pick.space}'; tune it in that space"
        )
    pixels = w.batch * w.out_height * w.out_width
    data = plan.place(layer.data, data_form(layer, shapes[layer.data]), layer.unfold)
    output = plan.place(layer.output, form_of(shapes[layer.output], w.out_channels, pixels))
    one_row = is_flattened(w, shapes[layer.data])
    stride = round_up(w.in_channels) if one_row else data.stride
    g = replace(lowering.geometry, data_stride=stride, output_stride=output.stride)
    places = {"data": data.at, "output": output.at}
    if layer.residual is not None:
        form = form_of(shapes[layer.residual], w.out_channels, pixels)
        residual = plan.place(layer.residual, form)
        g, places["residual"] = replace(g, residual_stride=residual.stride), residual.at
    if layer.weight_from is not None:
        places["weight"] = plan.place(layer.weight_from, "weights").at
    weight = layer.weight
    if weight is None:
        weight = np.zeros((w.out_channels, w.in_channels, 1, 1), np.int8)
    else:
        weight = _of_pixels(weight, w, shapes[layer.data])
    made = {}
    for role, values in constants(g, weight, layer.bias).items():
        if role not in places:
            places[role] = plan.room(values.nbytes)
            made[places[role]] = values
    g = replace(g, addresses=places)
    values = lowering.space.values(np.array([pick.config], np.int32))[0].tolist()
    try:
        program = program_of(g, spec.machine, TileSchedule(*values))
    except LoweringFailure:
        # The schedule was chosen for the layer with other immediates, which may need less memory.
        # The schedule of the vendor's rule runs for every workload that
        # `WorkloadLowering.for_workload` accepts.
        rule = lowering.vendor[1]
        pick = Pick(pick.space, lowering.config_of(rule))
        program = program_of(g, spec.machine, rule)
    return LoweredLayer(layer, pick, g, program, made)


def data_form(layer: Layer, shape: tuple[int, ...]) -> Form:
    """Return the memory form in which a layer reads its input: as images or as rows of channels.

    Args:
        layer: the layer.
        shape: shape of the value that the layer reads.
    """
    w = layer.workload
    if layer.unfold is not None or is_flattened(w, shape):
        return "image"
    return form_of(shape, w.in_channels, w.batch * w.height * w.width)


def form_of(shape: tuple[int, ...], channels: int, pixels: int) -> Form:
    """Return the memory form of a tensor that a layer treats as a matrix of pixels × channels.

    Args:
        shape: shape of the tensor.
        channels: number of channels that the layer expects.
        pixels: number of pixels that the layer expects, in all images together.

    Returns:
        "image" if `shape` is (n, channels, h, w) with n·h·w = `pixels`; otherwise "rows".
    """
    is_image = len(shape) == 4 and shape[1] == channels and shape[0] * shape[2] * shape[3] == pixels
    return "image" if is_image else "rows"


def is_flattened(w: Workload, shape: tuple[int, ...]) -> bool:
    """Return whether a layer is a dense layer that reads a whole image as a single row of channels.

    Args:
        w: workload of the layer.
        shape: shape of the value that the layer reads.
    """
    return w.operator == "dense" and w.batch == 1 and len(shape) == 4 and shape[0] == 1


def _of_pixels(weight: NDArray[np.int8], w: Workload, shape: tuple[int, ...]) -> NDArray[np.int8]:
    """Reorder the weights of a dense layer that reads a flattened image (see `is_flattened`).

    An image is stored pixel by pixel, so the weights for all channels of a pixel must be adjacent.
    The weights of other layers are returned unchanged.

    Args:
        weight: weights, shape (o, c). Their columns are ordered by block of 16 channels, then by
            pixel.
        w: workload of the layer.
        shape: shape of the value that the layer reads.

    Returns:
        Weights of the same shape, with columns ordered by pixel, then by block of 16 channels.
    """
    if not is_flattened(w, shape) or shape[2] * shape[3] == 1:
        return weight
    packed = weight.reshape(len(weight), -1, shape[2] * shape[3], DIM)
    return np.ascontiguousarray(packed.transpose(0, 2, 1, 3)).reshape(weight.shape)


@dataclass
class _Segment:
    """A sequence of layers that the accelerator runs without work of the host in between.

    Attributes:
        layers: the layers, in execution order.
        loads: tensors that the host writes to memory before the segment.
        stores: tensors that the host reads from memory after the segment.
    """

    layers: list[LoweredLayer] = field(default_factory=list)
    loads: list[HostTensor] = field(default_factory=list)
    stores: list[HostTensor] = field(default_factory=list)


class _Builder:
    """Builder of a network. Layers and host steps are added to it in execution order."""

    def __init__(self, graph: LayerGraph, spec: GemminiSpec) -> None:
        self.graph, self.spec = graph, spec
        self.shapes = {name: value.shape for name, value in graph.values.items()}
        layers = [step for step in graph.steps if isinstance(step, Layer)]
        flattened = {
            layer.data for layer in layers if is_flattened(layer.workload, self.shapes[layer.data])
        }
        self.plan = MemoryPlan(graph, without_gaps=flattened)
        self.segments: list[_Segment] = []
        self.order: list[tuple[str, int]] = []
        self.made: dict[str, tuple[Form, int]] = {}  # tensors that layers write: form and segment
        self.there: set[Reading] = set()  # values that memory holds, in the forms that it holds
        self.open = False  # whether layers can be added to the last segment

    def layer(self, layer: Layer, pick: Pick) -> None:
        """Lower a layer and append it to the current segment.

        A segment is a sequence of layers without work of the host in between. A new segment begins
        if the layer needs a value of the current segment in another memory layout, which only the
        host can produce.

        Args:
            layer: the layer.
            pick: the layer's schedule.
        """
        w, pixels = layer.workload, layer.workload.batch * layer.workload.out_height
        pixels *= w.out_width
        reads: list[Reading] = [
            (layer.data, data_form(layer, self.shapes[layer.data]), layer.unfold)
        ]
        if layer.residual is not None:
            form = form_of(self.shapes[layer.residual], w.out_channels, pixels)
            reads.append((layer.residual, form, None))
        if layer.weight_from is not None:
            reads.append((layer.weight_from, "weights", None))
        missing = [read for read in reads if read not in self.there]
        here = len(self.segments) - 1
        if any(name in self.made and self.made[name][1] == here for name, *_ in missing):
            self.open = False
        if not self.open:
            self.open = True
            self.order.append(("segment", len(self.segments)))
            self.segments.append(_Segment())
        for name, form, unfold in missing:
            self._load(name, form, unfold)
        program = lower_layer(layer, self.plan, self.shapes, self.spec, pick)
        self.segments[-1].layers.append(program)
        self._record_written(
            layer.output, form_of(self.shapes[layer.output], w.out_channels, pixels)
        )

    def host(self, step: HostStep, number: int) -> None:
        """Append a host step. It ends the current segment, whose outputs the step may read.

        Args:
            step: the step.
            number: index of the step among the network's host steps.
        """
        self.open = False
        for name in step.reads:
            self.store(name)
        self.order.append(("host", number))

    def store(self, name: str) -> None:
        """Add a value to the outputs of the segment that computes it, so that the host can read it.

        Nothing changes if no layer computes the value.

        Args:
            name: name of the value.
        """
        if name not in self.made:
            return
        form, segment = self.made[name]
        value = self.graph.values[name]
        outside = self.graph.stored_as.get(name, value)
        port = HostTensor.for_value(
            outside, value, outside.scale or value.scale, self.plan.place(name, form)
        )
        stores = self.segments[segment].stores
        if all(tensor.name != port.name for tensor in stores):
            stores.append(port)

    def _load(self, name: str, form: Form, unfold: Unfold | None) -> None:
        self.store(name)
        value = self.graph.values[name]
        outside = self.graph.loaded_as.get(name, value)
        place = self.plan.place(name, form, unfold)
        self.segments[-1].loads.append(HostTensor.for_value(outside, value, value.scale, place))
        self.there.add((name, form, unfold))

    def _record_written(self, name: str, form: Form) -> None:
        """Record that the current segment wrote a value to memory.

        A value can be a slice of the channels of another value, in the same memory. All values that
        share memory with the written value are recorded, too.

        Args:
            name: name of the value.
            form: memory layout of the value: `image` or `rows`.
        """
        waiting, segment = [name], len(self.segments) - 1
        while waiting:
            current = waiting.pop()
            self.made[current] = form, segment
            self.there.add((current, form, None))
            for channel_slice in self.graph.slices:
                other = {
                    channel_slice.part: channel_slice.whole,
                    channel_slice.whole: channel_slice.part,
                }.get(current)
                if other is not None and self.made.get(other) != (form, segment):
                    waiting.append(other)


def build(graph: LayerGraph, schedules: Sequence[Pick], spec: GemminiSpec) -> Built:
    """Build the program of a network.

    Args:
        graph: the network.
        schedules: one schedule per layer, in execution order.
        spec: the machine.

    Returns:
        The files of the artifact, and descriptions of layers, memory and cycles.

    Raises:
        WorkloadError: a layer cannot be lowered, or the network exceeds the memory.
    """
    builder, picks, host = _Builder(graph, spec), iter(schedules), 0
    for step in graph.steps:
        if isinstance(step, Layer):
            builder.layer(step, next(picks))
        else:
            builder.host(step, host)
            host += 1
    for name in graph.outputs:
        builder.store(name)
    segments = builder.segments
    layers = [(k, layer) for k, segment in enumerate(segments) for layer in segment.layers]
    described: list[dict[str, Json]] = []
    first = 0
    for k, program in layers:
        described.append(_describe_layer(program, k, first, spec))
        first += len(program.commands)
    pieces = [piece for _, program in layers for piece in program.constants.items()]
    size = builder.plan.end - MEMORY_BASE
    files = {
        COMMANDS: np.concatenate([p.commands for _, p in layers]).astype("<u8").tobytes(),
        CONSTANTS: b"".join(np.ascontiguousarray(v).tobytes() for _, v in pieces),
        PROGRAM: json.dumps(
            {
                "memory_bytes": size,
                "constants": [[at, values.nbytes] for at, values in pieces],
                "segments": [
                    {
                        "loads": [port.to_json() for port in segment.loads],
                        "stores": [port.to_json() for port in segment.stores],
                    }
                    for segment in segments
                ],
            }
        ).encode(),
    }
    times = GemminiProgram.open(files, described, spec).times()
    spans = [cycles for layer in times for cycles in layer.layers]
    rows: list[dict[str, Json]] = [
        {**row, "stream_cycles": span} for row, span in zip(described, spans, strict=True)
    ]
    return Built(
        files=files,
        layers=rows,
        order=builder.order,
        memory=_memory(segments, size, files),
        bytes=size,
        stream_cycles=sum(layer.total for layer in times),
        ports=[(tuple(p.name for p in s.loads), tuple(p.name for p in s.stores)) for s in segments],
        why_not_bare=WHY_NOT_BARE,
    )


def _describe_layer(
    program: LoweredLayer, segment: int, first: int, spec: GemminiSpec
) -> dict[str, Json]:
    """Return the JSON description of a layer that the artifact stores.

    Args:
        program: the lowered layer.
        segment: index of the layer's segment.
        first: index of the layer's first command among the commands of all layers.
        spec: the machine.
    """
    g, w = program.geometry, program.layer.workload
    space = WorkloadLowering.for_workload(w, spec).space
    alone = time_stream(stream_from(segment_commands([program.commands])), spec).total
    return {
        "cycles": alone,
        "roofline_cycles": roofline_cycles(w, spec),
        "workload": str(w),
        "epilogue": w.epilogue_text,
        "space": program.pick.space,
        "config": list(program.pick.config),
        "knobs": dict(space.describe(program.pick.config)),
        "segment": segment,
        "instructions": [first, len(program.commands)],
        "addresses": dict(g.addresses),
        "strides": [g.data_stride, g.residual_stride, g.output_stride, g.weight_stride],
    }


def _memory(segments: Sequence[_Segment], size: int, files: dict[str, bytes]) -> dict[str, Json]:
    tensors: list[Json] = [
        {"name": port.name, "buffer": 0, "offset": port.place.at - MEMORY_BASE,
         "bytes": int(np.prod(port.held))}
        for segment in segments for port in (*segment.loads, *segment.stores)
    ]  # fmt: skip
    counts = [sum(len(layer.commands) for layer in segment.layers) for segment in segments]
    return {
        "buffers": [
            {"name": "memory", "kind": "activations", "bytes": size - len(files[CONSTANTS])},
            {"name": "constants", "kind": "constants", "bytes": len(files[CONSTANTS])},
        ],
        "instructions": [24 * count for count in counts],
        "tensors": tensors,
    }
