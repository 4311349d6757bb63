"""Checks each layer of a built network on a simulated board against plain integer arithmetic.

For each layer, only the layer's part of the instruction stream is run. The expected output is
computed from the weights that are stored in the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json, as_int, as_list, as_object, as_text
from tilewright.targets.artifact_types import LayerCheck
from tilewright.targets.vta.board.layer_program import regions, space_of
from tilewright.targets.vta.board.layouts import pack, weights_packing
from tilewright.targets.vta.board.program import BoardProgram, MemoryPiece
from tilewright.targets.vta.board.program_check import BoardError
from tilewright.targets.vta.board.simulated_board import Device
from tilewright.targets.vta.functional.semantics import WORK_LIMIT
from tilewright.targets.vta.instruction_format import FINISH, element_bytes
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.geometry import Geometry, merged_groups
from tilewright.targets.vta.lowering.tensor_packing import reference, unpacked_vectors
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload, parse_workload

Values = NDArray[np.int64]


@dataclass(frozen=True)
class Checked:
    """Description of a layer of a built program, as needed to check the layer.

    A segment is a sequence of layers that runs as one instruction stream.

    Attributes:
        workload: the workload.
        space: name of the schedule space.
        segment: index of the layer's segment.
        first: index of the layer's first instruction in the program.
        count: number of the layer's instructions.
        places: memory locations of each tensor, by the tensor's role, such as "data" or "output".
    """

    workload: Workload
    space: str
    segment: int
    first: int
    count: int
    places: Mapping[str, Sequence[MemoryPiece]]


def read_layer(layer: Mapping[str, Json]) -> Checked:
    """Read the JSON description of a layer that `build` wrote.

    Raises:
        KeyError: a field is missing.
        ValueError: a field is invalid.
        WorkloadError: the workload is invalid.
    """
    first, count = map(as_int, as_list(layer["instructions"]))
    places = {
        name: [_piece(as_list(piece)) for piece in as_list(pieces)]
        for name, pieces in as_object(layer["places"]).items()
    }
    workload = parse_workload(as_text(layer["workload"]), as_text(layer["epilogue"]))
    space = as_text(layer["space"])
    return Checked(workload, space, as_int(layer["segment"]), first, count, places)


def _piece(numbers: Sequence[Json]) -> MemoryPiece:
    first, last, buffer, offset = map(as_int, numbers)
    return MemoryPiece(first, last, buffer, offset)


def check_described(program: BoardProgram, layers: Sequence[Checked]) -> None:
    """Check that descriptions of layers match a program.

    The instructions of the layers must follow one another in the program's segments, and their
    tensors must lie within its buffers.

    Args:
        program: the program.
        layers: descriptions of the layers.

    Raises:
        BoardError: the descriptions do not match.
    """
    if len(program.steps) != len(program.segments):
        raise _foreign_error("the program has steps other than segments")
    end = segment = 0
    for number, layer in enumerate(layers):
        if not segment <= layer.segment < len(program.segments):
            raise _foreign_error(f"layer {number} is in segment {layer.segment}")
        segment = layer.segment
        layer_segment = program.segments[segment]
        begun = max(end, layer_segment.first)
        if (
            layer.first != begun
            or not 1 <= layer.count <= layer_segment.first + layer_segment.count - begun
        ):
            raise _foreign_error(f"layer {number} is not the next part of segment {segment}")
        end = layer.first + layer.count
        for pieces in layer.places.values():
            done = 0
            for piece in pieces:
                in_range = 0 <= piece.buffer < len(program.buffers)
                room = program.buffers[piece.buffer].bytes if in_range else 0
                size = piece.last - piece.first
                if piece.first != done or size < 1 or not 0 <= piece.offset <= room - size:
                    raise _foreign_error(f"a tensor of layer {number} is in no buffer")
                done = piece.last


def _foreign_error(why: str) -> BoardError:
    return BoardError(
        f"the described layers do not match the program: {why}; copy the artifact again, or "
        "build it again from its model"
    )


def check_layers(
    program: BoardProgram, layers: Sequence[Checked], seed: int
) -> Iterator[LayerCheck]:
    """Run the layers of a program in order, and compare each layer's output with the reference.

    At the beginning of each segment (a sequence of layers that runs as one instruction stream), the
    activations are filled with random values. Within a segment, a layer reads what the previous
    layers have written.

    Args:
        program: the program.
        layers: descriptions of its layers.
        seed: seed of the random activations.

    Yields:
        One result per layer.

    Raises:
        BoardError: the tensors of a layer have the wrong size.
    """
    device, m = Device(program), program.spec.machine
    rng = np.random.default_rng(seed)
    tokens, segment = (0, 0, 0, 0), -1
    for number, layer in enumerate(layers):
        if layer.segment != segment:
            tokens, segment = (0, 0, 0, 0), layer.segment
            for at, buffer in enumerate(program.buffers):
                if buffer.kind == "activations":
                    noise = rng.integers(0, 256, buffer.bytes, np.uint8)
                    device.memory(at, 0, buffer.bytes)[:] = noise
        lowering = Lowering.for_workload(layer.workload, program.spec, space_of(layer.space))
        geo = lowering.geometry
        _check_sizes(number, layer, geo, m)
        _fill_weights(device, program, layer, geo)
        tensors = _tensors(device, layer, geo, m)
        tensors |= _tensors_of_shortcut(device, layer, lowering)
        tokens = _run(device, layer, tokens)
        expected = reference(layer.workload, m, tensors)
        got = _image(device, layer, "output", geo, m)
        yield LayerCheck(number, expected.size, int((got != expected).sum()))


def _check_sizes(number: int, layer: Checked, geo: Geometry, m: Machine) -> None:
    """Check that a layer is small enough to be checked, and that its tensors have the right sizes.

    Args:
        number: index of the layer, for error messages.
        layer: the layer, with the locations of its tensors.
        geo: geometry of the layer.
        m: the machine.

    Raises:
        BoardError: the layer is too large, or a tensor does not have the size that the layer's
            program reads or writes.
    """
    if layer.workload.macs > WORK_LIMIT:
        raise _foreign_error(f"layer {number} is too large to be checked")
    element = element_bytes(m)
    for region in regions(geo, m):
        pieces = layer.places.get(region.name, ())
        size = region.elements * int(element[region.memory])
        if region.name != "uops" and (pieces[-1].last if pieces else 0) != size:
            raise _foreign_error(f"the {region.name} of layer {number} does not have {size} bytes")


def _run(
    device: Device, layer: Checked, tokens: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    """Run a layer's instructions on the simulated device, followed by a FINISH instruction.

    Args:
        device: the device, whose memory is modified.
        layer: the layer.
        tokens: number of tokens in each dependency queue before the layer.

    Returns:
        Number of tokens in each dependency queue after the layer.
    """
    insns = device.insns[layer.first : layer.first + layer.count]
    if int(insns[-1, 0]) & 7 != FINISH:
        insns = np.concatenate([insns, np.array([[FINISH, 0]], np.uint64)])
    return device.execute(insns, tokens)


def _fill_weights(device: Device, program: BoardProgram, layer: Checked, geo: Geometry) -> None:
    """Set the padding of weights to zero if the weights are an activation that the host packs.

    Before a check, the activations on the device are filled with random values. Without this
    function, random values in the padding of the weights would be multiplied by random values in
    the padding of the data.

    Args:
        device: the device, whose memory is modified.
        program: the program that is loaded on the device.
        layer: the layer.
        geo: geometry of the layer.
    """
    m, pieces = program.spec.machine, layer.places.get("weights", ())
    if all(program.buffers[piece.buffer].kind != "activations" for piece in pieces):
        return
    weight = unpacked_weights(layer.workload, m, geo, _raw(device, layer, "weights"))
    packed = pack(weights_packing(geo, m), m, weight[:, :, 0, 0].astype(np.int8)).view(np.uint8)
    for piece in pieces:
        room = device.memory(piece.buffer, piece.offset, piece.last - piece.first)
        room[:] = packed[piece.first : piece.last]


def _tensors(device: Device, layer: Checked, geo: Geometry, m: Machine) -> dict[str, Values]:
    """Read the operands of a layer from the device's memory, before the layer runs.

    Args:
        device: the simulated device.
        layer: the layer, with the locations of its tensors.
        geo: geometry of the layer.
        m: the machine.

    Returns:
        Operands by name, in the shapes that `reference` takes.
    """
    w = layer.workload
    tensors = {"data": _image(device, layer, "data", geo, m)}
    if w.operator != "max_pool":
        tensors["weight"] = unpacked_weights(w, m, geo, _raw(device, layer, "weights"))
    if "bias" in layer.places:
        offset = (geo.beside_bias_base - geo.bias_base) * m.acc_bytes
        raw = _raw(device, layer, "bias")[:offset]
        tensors |= unpacked_vectors(w, m, geo, _blocks(raw, m))
    if "add" in layer.places:
        tensors["add"] = _image(device, layer, "add", geo, m)
    if "residual" in layer.places:
        tensors["residual"] = _image(device, layer, "residual", geo, m)
    return tensors


def _tensors_of_shortcut(device: Device, layer: Checked, lowering: Lowering) -> dict[str, Values]:
    """Read the operands of a layer's shortcut from the device's memory.

    The weights and biases of the shortcut are stored after those of the layer.

    Args:
        device: the simulated device.
        layer: the layer, with the locations of its tensors.
        lowering: lowering of the layer's workload.

    Returns:
        Operands by name with the prefix `shortcut_`; empty if the layer has no shortcut.
    """
    workload, beside, m, geo = (
        layer.workload.of_shortcut, lowering.shortcut_geometry, lowering.machine, lowering.geometry
    )  # fmt: skip
    if workload is None or beside is None:
        return {}
    alone = Checked(workload, layer.space, layer.segment, 0, 0, {"data": layer.places["shortcut"]})
    weights = (geo.beside_wgt_base - geo.wgt_base) * m.wgt_bytes
    vectors = (geo.beside_bias_base - geo.bias_base) * m.acc_bytes
    tensors = {
        "data": _image(device, alone, "data", beside, m),
        "weight": unpacked_weights(workload, m, beside, _raw(device, layer, "weights")[weights:]),
    }
    if beside.bias_bytes:
        tensors |= unpacked_vectors(
            workload, m, beside, _blocks(_raw(device, layer, "bias")[vectors:], m)
        )
    return {f"shortcut_{name}": values for name, values in tensors.items()}


def _blocks(raw: NDArray[np.uint8], m: Machine) -> Values:
    """Convert the bytes of accumulators to integers.

    Args:
        raw: the bytes, uint8, shape (bytes,).
        m: the machine.

    Returns:
        Array of shape (elements, batch, block_out).
    """
    words = raw.view(f"<i{m.acc_bits // 8}").astype(np.int64)
    return words.reshape(-1, m.batch, m.block_out)


def _raw(device: Device, layer: Checked, role: str) -> NDArray[np.uint8]:
    """Read the bytes of a layer's tensor from all buffers that contain parts of it.

    Args:
        device: the simulated device.
        layer: the layer.
        role: name of the tensor in `layer.places`.

    Returns:
        uint8 array of shape (bytes,).
    """
    return np.concatenate(
        [device.memory(p.buffer, p.offset, p.last - p.first) for p in layer.places[role]]
    )


def _image(device: Device, layer: Checked, role: str, geo: Geometry, m: Machine) -> Values:
    """Read an activation or an added tensor of a layer from the device's memory.

    Args:
        device: the device.
        layer: the layer.
        role: role of the tensor: "data", "output", "residual" or "add".
        geo: geometry of the layer.
        m: the machine.

    Returns:
        int64 array of shape (n, c, h, w).
    """
    w, raw = layer.workload, _raw(device, layer, role)
    raw = raw.view(f"<i{m.acc_bits // 8}" if role == "add" else np.int8)
    blocks, block, channels = geo.out_blocks, m.block_out, w.out_channels
    size, (rows, cols) = geo.output, (w.out_height, w.out_width)
    if role == "data":
        blocks, block, channels = geo.inp_blocks, m.block_in, w.in_channels
        size, (rows, cols) = (geo.h, geo.w), (w.height, w.width)
    elif role in ("residual", "add"):
        size, (rows, cols) = (geo.oh, geo.ow), (w.results_height, w.results_width)
    packed = raw.reshape(geo.batches, blocks, *size, m.batch, block)
    order = (0, 2, 3, 4, 1, 5) if geo.column else (0, 4, 1, 5, 2, 3)
    whole = packed.transpose(order).reshape(-1, blocks * block, rows, cols)
    return whole[: w.batch, :channels].astype(np.int64)


def unpacked_weights(
    workload: Workload, m: Machine, geo: Geometry, raw: NDArray[np.uint8]
) -> Values:
    """Convert weights from the layout that a program reads to a tensor.

    Args:
        workload: the workload.
        m: the machine.
        geo: geometry of the packed workload.
        raw: the packed weights, uint8, shape (bytes,).

    Returns:
        int64 array of shape (o, c/groups, kh, kw).
    """
    w = workload
    taps = (w.kernel_h, w.kernel_w)
    elements = geo.groups * geo.co * geo.ci * taps[0] * taps[1]
    values = raw.view(f"<i{m.wgt_bits // 8}")[: elements * m.block_out * m.block_in]
    blocks = values.reshape(geo.groups * geo.co, geo.ci, *taps, m.block_out, m.block_in)
    whole = blocks.transpose(0, 4, 1, 5, 2, 3).reshape(
        geo.groups, geo.co * m.block_out, geo.ci * m.block_in, *taps
    )
    merged = merged_groups(w, m)
    per_in, per_out = w.in_channels // w.groups, w.out_channels // w.groups
    weights = whole[:, : merged * per_out, : merged * per_in].reshape(
        geo.groups, merged, per_out, merged, per_in, *taps
    )
    parts = np.stack([weights[:, g, :, g] for g in range(merged)], axis=1)
    weight = parts.reshape(geo.groups * merged * per_out, per_in, *taps)
    return weight[: w.out_channels].astype(np.int64)
