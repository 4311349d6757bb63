"""Lowers a single layer to a stand-alone VTA program.

The program consists of instructions, micro-ops, and packed weights and biases. The addresses in the
instructions refer to the program's own memory. `link` later joins the programs of several layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.layer import Layer, LayerShortcut, Value
from tilewright.targets.vta.board.layouts import (
    Packing,
    data_packing,
    output_packing,
    residual_packing,
    shortcut_packing,
    weights_packing,
)
from tilewright.targets.vta.instruction_format import ACC, INP, OUT, UOP, WGT, Words
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.lowering.geometry import Geometry, geometry_of
from tilewright.targets.vta.lowering.invalid_configs import FAILURES
from tilewright.targets.vta.lowering.tensor_packing import (
    packed_image,
    packed_vectors,
    packed_weights,
)
from tilewright.targets.vta.spec import Machine, VtaSpec

STOCK = "stock"
"""Name of the schedule space that has the restrictions of the stock compiler. Its schedules are
lowered like those of the space `template`."""
CHUNK_BYTES = 1 << 23
"""Size in bytes of the weights that are packed at a time. The intermediate arrays need several
times as much memory."""


@dataclass(frozen=True)
class MemoryRegion:
    """Contiguous range of a layer's memory that holds one tensor, counted in elements.

    Attributes:
        name: role of the tensor, such as "data" or "output".
        memory: memory type of the elements.
        first: index of the first element.
        elements: number of elements.
    """

    name: str
    memory: int
    first: int
    elements: int


@dataclass(frozen=True, eq=False)
class LayerProgram:
    """Stand-alone program of a layer.

    Attributes:
        layer: the layer.
        lowering: lowering of the layer's workload.
        data: memory layout of the input.
        output: memory layout of the output.
        space: name of the schedule space.
        config: knob indices of the schedule.
        insns: instructions, uint64, shape (n, 2); the last one is FINISH.
        uops: micro-ops as bytes.
        weights: packed weights as bytes.
        bias: packed values per channel, such as the bias, as bytes.
        add: packed int32 tensor that is added to the accumulators, as bytes.
    """

    layer: Layer
    lowering: Lowering
    data: Packing
    output: Packing
    space: str
    config: tuple[int, ...]
    insns: Words
    uops: NDArray[np.uint8]
    weights: NDArray[np.uint8]
    bias: NDArray[np.uint8]
    add: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))

    @property
    def residual(self) -> Packing:
        """Memory layout of the residual, a tensor that is added to the layer's accumulators."""
        return residual_packing(self.output, self.lowering.geometry)

    @property
    def shortcut(self) -> Packing:
        """Memory layout of the image that the layer's shortcut reads."""
        return shortcut_packing(self.lowering.geometry, self.lowering.machine)

    @property
    def packed_weights(self) -> Packing:
        """Memory layout of an activation that the layer reads as weights."""
        return weights_packing(self.lowering.geometry, self.lowering.machine)


def space_of(name: str) -> SpaceName:
    """Return the name of the schedule space whose lowering compiles the schedules of space `name`.

    It is `name` itself, except that the stock space is lowered like the template space.

    Raises:
        WorkloadError: the space does not exist.
    """
    if name == STOCK:
        return "template"
    if name not in get_args(SpaceName):
        raise WorkloadError(f"there is no schedule space '{name}'; tune again")
    return cast(SpaceName, name)


def lower_layer(
    layer: Layer, values: Mapping[str, Value], spec: VtaSpec, space: str, config: Sequence[int]
) -> LayerProgram:
    """Lower a layer with a given schedule.

    Args:
        layer: the layer.
        values: all tensors of the network, by name.
        spec: the machine.
        space: name of the schedule space.
        config: knob indices of the schedule.

    Raises:
        WorkloadError: the schedule is not in the space, or does not compile.
    """
    lowering = Lowering.for_workload(layer.workload, spec, space_of(space))
    knobs = lowering.space.knobs
    fits = len(knobs) == len(config) and all(
        0 <= index < len(knob.values) for knob, index in zip(knobs, config, strict=True)
    )
    if not fits:
        raise WorkloadError(
            f"layer {layer.name}: its schedule {list(config)} is not in the space {space} of "
            f"{layer.workload}; tune it again"
        )
    row = lowering.space.values(np.array([config], np.int32))[0]
    code, insns, uops, _ = lowering.program(row)
    if code:
        raise WorkloadError(
            f"layer {layer.name}: its schedule {list(config)} of the space {space} cannot be "
            f"compiled: {FAILURES[code].reason}; tune it again"
        )
    m = lowering.machine
    words = uops.astype(f"<u{m.uop_bytes}").view(np.uint8)
    weights, bias = packed_constants(layer, lowering)
    geo = lowering.geometry
    data = data_packing(layer, values[layer.data].shape, geo, m)
    output = output_packing(layer, values[layer.output].shape, geo, m)
    return LayerProgram(
        layer, lowering, data, output, space, tuple(config), insns, words, weights, bias,
        packed_addend(layer, lowering),
    )  # fmt: skip


def regions(geo: Geometry, m: Machine) -> list[MemoryRegion]:
    """List the memory ranges of all tensors of a layer's stand-alone program.

    Args:
        geo: geometry of the layer.
        m: the machine.
    """
    micro_ops = 1 << m.log_uop_depth
    return [
        MemoryRegion("uops", UOP, geo.uop_base, micro_ops),
        MemoryRegion("weights", WGT, geo.wgt_base, geo.wgt_bytes // m.wgt_bytes),
        MemoryRegion("data", INP, geo.inp_base, geo.inp_bytes // m.inp_bytes),
        MemoryRegion("bias", ACC, geo.bias_base, geo.bias_bytes // m.acc_bytes),
        MemoryRegion(
            "shortcut" if geo.beside_ci else "residual",
            INP,
            geo.res_base,
            geo.res_bytes // m.inp_bytes,
        ),
        MemoryRegion("add", ACC, geo.add_base, geo.add_bytes // m.acc_bytes),
        MemoryRegion("output", OUT, geo.out_base, geo.out_bytes // m.out_bytes),
    ]


def packed_constants(
    layer: Layer, lowering: Lowering
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pack the constants of a layer in the memory layout that its program reads.

    Args:
        layer: the layer with its weights, biases and shift amounts.
        lowering: lowering of the layer's workload.

    Returns:
        The packed weights, and the packed values per channel (such as the bias), uint8, shape
        (bytes,) each. The weights are empty if the layer multiplies two activations.
    """
    m, geo = lowering.machine, lowering.geometry
    parts = [] if layer.weight_from else list(_weight_parts(layer, lowering))
    vectors = [packed_vectors(layer.workload, m, geo, _vectors(layer))]
    shortcut, shortcut_workload, beside = (
        layer.shortcut,
        layer.workload.of_shortcut,
        lowering.shortcut_geometry,
    )
    if shortcut is not None and shortcut_workload is not None and beside is not None:
        weight = {"weight": shortcut.weight.astype(np.int64)}
        parts.append(_as_bytes(packed_weights(shortcut_workload, m, beside, weight), m.wgt_bits))
        vectors.append(packed_vectors(shortcut_workload, m, beside, _vectors(shortcut)))
    bias = _as_bytes(np.concatenate(vectors), m.acc_bits)
    return np.concatenate([np.zeros(0, np.uint8), *parts]), bias


def packed_addend(layer: Layer, lowering: Lowering) -> NDArray[np.uint8]:
    """Pack the int32 constants that a layer adds to its accumulators.

    Args:
        layer: the layer with its constants.
        lowering: lowering of the layer's workload.

    Returns:
        uint8 array of shape (bytes,); empty if the layer adds no such constants.
    """
    if layer.add is None:
        return np.zeros(0, np.uint8)
    m, geo = lowering.machine, lowering.geometry
    packed = packed_image(layer.add.astype(np.int64), m, geo, geo.out_blocks, m.block_out)
    return _as_bytes(packed, m.acc_bits)


def _vectors(of: Layer | LayerShortcut) -> dict[str, NDArray[np.int64]]:
    vectors = {"bias": of.bias, "shr_channel": of.shifts}
    return {kind: vector.astype(np.int64) for kind, vector in vectors.items() if vector is not None}


def _weight_parts(layer: Layer, lowering: Lowering) -> Iterator[NDArray[np.uint8]]:
    """Yield the packed weights of a layer in parts, to limit the memory for intermediate arrays.

    Each part contains the weights of a few output blocks. The last part ends with the identity
    matrix, if the layer needs one.

    Args:
        layer: the layer with its weights.
        lowering: lowering of the layer's workload.

    Yields:
        uint8 arrays of shape (bytes,).
    """
    w, m, geo = layer.workload, lowering.machine, lowering.geometry
    step = w.out_channels
    if w.groups == 1 and layer.weight is not None:
        step = max(1, CHUNK_BYTES * geo.co // max(1, geo.wgt_bytes)) * m.block_out
    for first in range(0, w.out_channels, step):
        last = min(first + step, w.out_channels)
        part_workload, part_geometry = w, geo
        if (first, last) != (0, w.out_channels):
            part_workload = replace(w, out_channels=last - first)
            part_geometry = geometry_of(part_workload, m, column=geo.column)
        tensors = {}
        if layer.weight is not None:
            tensors["weight"] = layer.weight[first:last].astype(np.int64)
        packed = packed_weights(part_workload, m, part_geometry, tensors)
        if part_geometry.identity_at >= 0 and last < w.out_channels:
            packed = packed[: part_geometry.identity_at]
        yield _as_bytes(packed, m.wgt_bits)


def _as_bytes(values: NDArray[np.int64], bits: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values.astype(f"<i{bits // 8}")).view(np.uint8).reshape(-1)
