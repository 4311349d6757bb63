"""Lowers a layer of a network to commands on its tensors' places in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.artifact_types import Pick
from tilewright.targets.gemmini.board.memory import Array, Form, MemoryPlan
from tilewright.targets.gemmini.lowering.batch import WorkloadLowering, program_of
from tilewright.targets.gemmini.lowering.failures import LoweringFailure
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, whole
from tilewright.targets.gemmini.lowering.schedule import TileSchedule
from tilewright.targets.gemmini.lowering.tensors import constants
from tilewright.targets.gemmini.lowering.words import CommandTable
from tilewright.targets.gemmini.spec import DIM, GemminiSpec
from tilewright.targets.layer import Layer
from tilewright.targets.workload import Workload


@dataclass(frozen=True, eq=False)
class LoweredLayer:
    """A layer's commands (n, 3), its geometry in the network's memory, and the constants that lie
    there, by address."""

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
    """A layer with a schedule of its space. Raises `WorkloadError`."""
    w = layer.workload
    lowering = WorkloadLowering.of(w, spec)
    if pick.space != lowering.space.name or (layer.weight is None and layer.weight_from is None):
        raise WorkloadError(f"{layer.name} has no schedule of the space '{pick.space}'; tune it")
    pixels = w.batch * w.out_height * w.out_width
    data = plan.place(layer.data, data_form(layer, shapes[layer.data]), layer.unfold)
    output = plan.place(layer.output, form_of(shapes[layer.output], w.out_channels, pixels))
    one_row = is_flattened(w, shapes[layer.data])
    stride = whole(w.in_channels) if one_row else data.stride
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
        # The schedule was chosen for the layer with other immediates, which need less room. The
        # rule's schedule runs for every workload that `WorkloadLowering.of` accepts.
        rule = lowering.vendor[1]
        pick = Pick(pick.space, lowering.config_of(rule))
        program = program_of(g, spec.machine, rule)
    return LoweredLayer(layer, pick, g, program, made)


def data_form(layer: Layer, shape: tuple[int, ...]) -> Form:
    """How a layer reads its data, a value of that shape."""
    w = layer.workload
    if layer.unfold is not None or is_flattened(w, shape):
        return "image"
    return form_of(shape, w.in_channels, w.batch * w.height * w.width)


def form_of(shape: tuple[int, ...], channels: int, pixels: int) -> Form:
    """How a value of that shape is rows × channels."""
    is_image = len(shape) == 4 and shape[1] == channels and shape[0] * shape[2] * shape[3] == pixels
    return "image" if is_image else "rows"


def is_flattened(w: Workload, shape: tuple[int, ...]) -> bool:
    """Whether a dense layer reads all pixels of an image as one row."""
    return w.operator == "dense" and w.batch == 1 and len(shape) == 4 and shape[0] == 1


def _of_pixels(weight: NDArray[np.int8], w: Workload, shape: tuple[int, ...]) -> NDArray[np.int8]:
    """Weights of a flattened image, which come in the order of blocks of channels, in that of
    memory: pixel by pixel."""
    if not is_flattened(w, shape) or shape[2] * shape[3] == 1:
        return weight
    packed = weight.reshape(len(weight), -1, shape[2] * shape[3], DIM)
    return np.ascontiguousarray(packed.transpose(0, 2, 1, 3)).reshape(weight.shape)
