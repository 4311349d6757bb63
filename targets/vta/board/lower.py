"""A layer as a program of its own: instructions at the addresses of its own memory, micro-ops,
packed weights and bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from targets.errors import WorkloadError
from targets.layer import Layer, Value
from targets.vta.board.forms import Packing, data_packing, output_packing, weights_packing
from targets.vta.board.words import Words
from targets.vta.isa import ACC, INP, OUT, UOP, WGT
from targets.vta.lowering.batch import Lowering, SpaceName
from targets.vta.lowering.failures import FAILURES
from targets.vta.lowering.geometry import PAGE_BYTES, Geometry
from targets.vta.lowering.tensors import pack_image
from targets.vta.spec import Machine, VtaSpec
from targets.workload import Workload

STOCK = "stock"
"""The template space with the stock compiler's restrictions: its programs are the template's."""
CHUNK_BYTES = 1 << 23
"""Weights are packed by so many at a time: in between, each takes several times its bytes."""


@dataclass(frozen=True)
class Region:
    """A tensor in the memory of a layer's own program: elements of one memory type."""

    name: str
    memory: int
    first: int
    elements: int


@dataclass(frozen=True, eq=False)
class LayerProgram:
    """`insns` (n, 2) end in FINISH; `uops`, `weights` and `bias` are bytes as they lie in memory.
    `layer` is as the machine sees it: weights of a flattened image are in the image's order.
    `data` says how its input lies in memory; `space` and `config` are the schedule."""

    layer: Layer
    lowering: Lowering
    data: Packing
    space: str
    config: tuple[int, ...]
    insns: Words
    uops: NDArray[np.uint8]
    weights: NDArray[np.uint8]
    bias: NDArray[np.uint8]

    @property
    def output(self) -> Packing:
        """How its output lies in memory."""
        return output_packing(self.lowering.geometry, self.lowering.machine)

    @property
    def packed_weights(self) -> Packing:
        """How an activation does that it takes as weights."""
        return weights_packing(self.lowering.geometry, self.lowering.machine)


def as_packed(layer: Layer, values: Mapping[str, Value], machine: Machine) -> Layer:
    """The layer with its weights in the order in which its input lies packed in memory: those of a
    dense layer behind a flattened image follow the image's blocks."""
    shape = values[layer.data].shape
    if not _flattened(layer, shape) or layer.weight is None:
        return layer
    c, h, w = shape[1:]
    block = machine.block_in
    blocks = -(-c // block)
    out = layer.workload.out_channels
    whole = np.zeros((out, blocks * block, h, w), np.int8)
    whole[:, :c] = layer.weight.reshape(out, c, h, w)
    ordered = whole.reshape(out, blocks, block, h, w).transpose(0, 1, 3, 4, 2)
    weight = np.ascontiguousarray(ordered).reshape(out, -1, 1, 1)
    workload = replace(layer.workload, in_channels=weight.shape[1])
    return replace(layer, workload=workload, weight=weight)


def _flattened(layer: Layer, shape: tuple[int, ...]) -> bool:
    """Whether a layer takes all pixels of an image of that shape as its channels."""
    return layer.workload.operator == "dense" and len(shape) == 4 and shape[2] * shape[3] > 1


def lower_layer(
    layer: Layer, values: Mapping[str, Value], spec: VtaSpec, space: str, config: Sequence[int]
) -> LayerProgram:
    """Lower a layer (of `as_packed`) by a schedule: knob indices in a space. Raises `WorkloadError`
    where that makes no program."""
    kind = cast(SpaceName, "template" if space == STOCK else space)
    lowering = Lowering.of(layer.workload, spec, kind)
    knobs = lowering.space.knobs
    fits = len(knobs) == len(config) and all(
        0 <= index < len(knob.values) for knob, index in zip(knobs, config, strict=True)
    )
    if not fits:
        raise WorkloadError(
            f"layer {layer.name}: its schedule {list(config)} is none of the space {space} of "
            f"{layer.workload}; tune it again"
        )
    row = lowering.space.values(np.array([config], np.int32))[0]
    code, insns, uops, _ = lowering.program(row)
    if code:
        raise WorkloadError(
            f"layer {layer.name}: its schedule {list(config)} of the space {space} makes no "
            f"program: {FAILURES[code].reason}; tune it again"
        )
    m = lowering.machine
    words = uops.astype(f"<u{m.uop_bytes}").view(np.uint8)
    weights, bias = packed_constants(layer, lowering)
    data = data_packing(lowering.geometry, m)
    shape = values[layer.data].shape
    if _flattened(layer, shape):
        h, w = shape[2:]
        data = replace(data, blocks=data.blocks // (h * w), height=h, width=w)
    return LayerProgram(layer, lowering, data, space, tuple(config), insns, words, weights, bias)


def regions(geo: Geometry, m: Machine) -> list[Region]:
    """The tensors of a layer's program."""
    micro_ops = 1 << m.log_uop_depth
    return [
        Region("uops", UOP, geo.uop_base, micro_ops),
        Region("weights", WGT, geo.wgt_base, geo.wgt_bytes // m.wgt_bytes),
        Region("data", INP, geo.inp_base, geo.inp_bytes // m.inp_bytes),
        Region("bias", ACC, geo.bias_base, geo.bias_bytes // m.acc_bytes),
        Region("add", ACC, geo.add_base, geo.add_bytes // m.acc_bytes),
        Region("output", OUT, geo.out_base, geo.out_bytes // m.out_bytes),
    ]


def packed_constants(
    layer: Layer, lowering: Lowering
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Weights and bias of a layer as its program reads them, bytes each; none where an activation
    is in the place of the weights."""
    w, m, geo = layer.workload, lowering.machine, lowering.geometry
    if layer.weight is None and layer.weight_from is not None:
        weights = np.zeros(0, np.uint8)
        bias = _constants(replace_weight(layer), w, lowering)[1]
        return weights, bias
    chunk = max(1, CHUNK_BYTES // max(1, geo.wgt_bytes // max(1, geo.co))) * m.block_out
    if w.groups > 1 or layer.weight is None or chunk >= w.out_channels:
        return _constants(layer, w, lowering)
    parts = []
    for first in range(0, w.out_channels, chunk):
        part = slice(first, min(first + chunk, w.out_channels))
        few = replace(w, out_channels=part.stop - part.start)
        bias = None if layer.bias is None else layer.bias[part]
        piece = replace(layer, workload=few, weight=layer.weight[part], bias=bias)
        parts.append(_constants(piece, few, Lowering.of(few, lowering.spec, lowering.kind)))
    return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


def replace_weight(layer: Layer) -> Layer:
    """The layer with zeros in the place of an activation that serves as its weights."""
    w = layer.workload
    shape = w.out_channels, w.in_channels // w.groups, w.kernel_h, w.kernel_w
    return replace(layer, weight=np.zeros(shape, np.int8), weight_from=None)


def _constants(
    layer: Layer, workload: Workload, lowering: Lowering
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Cut out of the memory image that the lowering's own program would run on."""
    m, geo = lowering.machine, lowering.geometry
    w = workload
    nothing = np.zeros(1, np.int64)
    tensors = {"data": np.broadcast_to(nothing, (w.batch, w.in_channels, w.height, w.width))}
    if layer.weight is not None:
        tensors["weight"] = layer.weight.astype(np.int64)
    if layer.bias is not None:
        tensors["bias"] = layer.bias.astype(np.int64)
    image = pack_image(w, m, geo, tensors, np.zeros(0, np.uint64))

    def cut(base: int, element: int, size: int) -> NDArray[np.uint8]:
        at = base * element - PAGE_BYTES
        return image[at : at + size].copy()

    return (
        cut(geo.wgt_base, m.wgt_bytes, geo.wgt_bytes),
        cut(geo.bias_base, m.acc_bytes, geo.bias_bytes),
    )
