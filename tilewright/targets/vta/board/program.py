"""Data structures of a network's program: instruction streams, buffers, relocations and ports.

A segment is a sequence of layers that runs as one instruction stream. The program contains no
addresses: a LOAD or STORE holds an element offset inside a buffer. When the buffers are allocated,
the loader adds the buffer's address, divided by the element size, to every field that a relocation
names (`dram_base`, bits 26 to 57 of an instruction).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.im2col import Unfold
from tilewright.targets.layer import Scale, Value
from tilewright.targets.vta.spec import VtaSpec

MAX_BUFFER_BYTES = 1 << 25
"""Maximum size of one allocation by the driver (`VTA_MAX_XFER`)."""

RELOCATION = np.dtype(
    [("instruction", "<u4"), ("memory", "<u4"), ("buffer", "<u4"), ("offset", "<u4")]
)
"""A relocation: the index of the instruction in `BoardProgram.insns`, the memory type that the
instruction refers to (`isa.UOP` …), the buffer, and the offset in the buffer in elements of that
memory type."""

BufferKind = Literal["uops", "constants", "activations"]
PortForm = Literal["image", "column", "weights"]


@dataclass(frozen=True)
class Buffer:
    """A buffer in the driver's memory, of at most `MAX_BUFFER_BYTES`.

    Buffers of constants and micro-ops are filled once from a file. Buffers of activations are not
    initialised.

    Attributes:
        name: name of the buffer.
        kind: content of the buffer, which also determines the file.
        bytes: size in bytes.
        offset: position in the file from which the buffer is filled, in bytes.
    """

    name: str
    kind: BufferKind
    bytes: int
    offset: int = 0


@dataclass(frozen=True)
class MemoryPiece:
    """A range of a tensor's bytes and its location in a buffer.

    Attributes:
        first: index of the first byte in the tensor.
        last: index after the last byte in the tensor.
        buffer: index of the buffer.
        offset: position of the first byte in the buffer, in bytes.
    """

    first: int
    last: int
    buffer: int
    offset: int


@dataclass(frozen=True)
class Segment:
    """A part of a network that runs as one instruction stream, without the host.

    Attributes:
        first: index of its first instruction.
        count: number of instructions; the last one is FINISH.
    """

    first: int
    count: int


@dataclass(frozen=True)
class Port:
    """A tensor that the host and the accelerator exchange, and its location in memory.

    The layouts are, as int8 values:

    - `image`: (n, c, h, w), unfolded first if `unfold` is set, stored as (batches, blocks, h, w,
      batch, block).
    - `column`: rows × channels, stored as (blocks, batches, batch, block). The rows are all leading
      axes.
    - `weights`: rows × channels as the weights of a dense layer, stored as (⌈rows/block_out⌉,
      ⌈channels/block_in⌉, block_out, block_in).

    Attributes:
        name: name of the tensor.
        shape: shape of the host's tensor.
        dtype: element type of the host's tensor. A uint8 tensor is the stored int8 values plus 128.
        scale: quantisation scale of a float tensor.
        form: memory layout.
        buffer: index of the buffer.
        offset: byte offset in the buffer.
        unfold: rearrangement that is applied to an image before it is stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: Scale
    form: PortForm
    buffer: int
    offset: int
    unfold: Unfold | None = None


@dataclass(frozen=True)
class ProgramStep:
    """A segment, with the tensors that the host packs before it and unpacks after it.

    Attributes:
        segment: index of the segment.
        loads: tensors that the host packs.
        stores: tensors that the host unpacks.
    """

    segment: int
    loads: tuple[Port, ...]
    stores: tuple[Port, ...]


@dataclass(frozen=True, eq=False)
class BoardProgram:
    """A program for a board, without addresses.

    Attributes:
        spec: the machine.
        insns: instructions of all segments, shape (n, 2).
        relocations: array of `RELOCATION` records, shape (r,).
        uops: bytes that fill the buffers of micro-ops.
        constants: bytes that fill the buffers of constants.
        buffers: the buffers.
        segments: the segments.
        steps: the segments with the tensors that the host exchanges.
        inputs: the network's inputs on the host, in the order of its manifest. An input may have no
            port, or several ports of its name.
        outputs: the network's outputs on the host, in the order of its manifest.
    """

    spec: VtaSpec
    insns: NDArray[np.uint64]
    relocations: NDArray[np.void]
    uops: NDArray[np.uint8]
    constants: NDArray[np.uint8]
    buffers: Sequence[Buffer]
    segments: Sequence[Segment]
    steps: Sequence[ProgramStep]
    inputs: Sequence[Value] = ()
    outputs: Sequence[Value] = ()


def crossing(
    steps: Sequence[ProgramStep], between: Collection[str] = ()
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return the tensors that a sequence of steps takes from outside, and those that it returns.

    Args:
        steps: the segments with the tensors that the host packs and unpacks, in execution order.
        between: names of tensors that the host computes between steps.

    Returns:
        Inputs in the order of their first use, and outputs.
    """
    stored = {port.name: port for step in steps for port in step.stores}
    inner = {*stored, *between}
    loaded: dict[str, Port] = {}
    for port in (port for step in steps for port in step.loads):
        if port.name not in inner:
            loaded.setdefault(port.name, port)
    return _values(loaded.values()), _values(stored.values())


def _values(ports: Iterable[Port]) -> tuple[Value, ...]:
    return tuple(Value(port.name, port.shape, port.dtype) for port in ports)
