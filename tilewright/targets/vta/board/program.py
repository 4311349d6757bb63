"""Data structures of a network's program: instruction streams, buffers, relocations and ports.

A segment is a sequence of layers that runs as one instruction stream. The program contains no
addresses. Instead, the field `dram_base` of a LOAD or STORE (bits 26 to 57) holds an element offset
inside a buffer. When the loader has allocated the buffers, it adds the address of the buffer,
divided by the element size, to this field of every instruction that has a relocation.
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
"""Maximum size in bytes of one allocation by the driver (`VTA_MAX_XFER`)."""

RELOCATION = np.dtype(
    [("instruction", "<u4"), ("memory", "<u4"), ("buffer", "<u4"), ("offset", "<u4")]
)
"""Record type of a relocation: the index of an instruction in `BoardProgram.insns`, the memory type
of the transfer (`isa.UOP` …), the index of the buffer, and the offset in the buffer in elements of
this memory type."""

BufferKind = Literal["uops", "constants", "activations"]
PortForm = Literal["image", "column", "weights"]


@dataclass(frozen=True)
class Buffer:
    """Buffer in the driver's memory, of at most `MAX_BUFFER_BYTES`.

    Buffers of constants and micro-ops are filled once from a file. Buffers of activations are not
    initialised.

    Attributes:
        name: name of the buffer.
        kind: content of the buffer, which also determines the file.
        bytes: size in bytes.
        offset: byte position in the file from which the buffer is filled.
    """

    name: str
    kind: BufferKind
    bytes: int
    offset: int = 0


@dataclass(frozen=True)
class MemoryPiece:
    """Range of a tensor's bytes, and its location in a buffer.

    Attributes:
        first: index of the first byte in the tensor.
        last: index after the last byte in the tensor.
        buffer: index of the buffer.
        offset: byte position of the first byte in the buffer.
    """

    first: int
    last: int
    buffer: int
    offset: int


@dataclass(frozen=True)
class Segment:
    """Part of a network that runs as one instruction stream, without the host.

    Attributes:
        first: index of the segment's first instruction.
        count: number of instructions; the last one is FINISH.
    """

    first: int
    count: int


@dataclass(frozen=True)
class Port:
    """Tensor that the host and the accelerator exchange, and its location in memory.

    The memory layouts, in int8 values, are:

    - `image`: shape (n, c, h, w), after unfolding if `unfold` is set. It is stored as (batches,
      blocks, h, w, batch, block).
    - `column`: shape (rows, channels), where all leading axes together are the rows. It is stored
      as (blocks, batches, batch, block).
    - `weights`: shape (rows, channels), read as the weights of a dense layer. It is stored as
      (⌈rows/block_out⌉, ⌈channels/block_in⌉, block_out, block_in).

    Attributes:
        name: name of the tensor.
        shape: shape of the host's tensor.
        dtype: element type of the host's tensor. A uint8 tensor holds the stored int8 values plus
            128.
        scale: quantisation scale of a float tensor.
        form: memory layout.
        buffer: index of the buffer.
        offset: byte offset in the buffer.
        unfold: rearrangement that is applied to an image before it is stored, if any.
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
    """Program for a board, without addresses.

    Attributes:
        spec: the machine.
        insns: instructions of all segments, uint64, shape (n, 2).
        relocations: array of `RELOCATION` records, shape (r,).
        uops: bytes that fill the buffers of micro-ops.
        constants: bytes that fill the buffers of constants.
        buffers: the buffers.
        segments: the segments.
        steps: the segments with the tensors that they exchange with the host.
        inputs: the network's inputs on the host, in the order of its manifest. No port, one port or
            several ports may have the name of an input.
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
    """Return the inputs and outputs of a sequence of program steps, taken as a whole.

    Args:
        steps: the segments with the tensors that the host packs and unpacks, in execution order.
        between: names of tensors that the host computes between steps.

    Returns:
        The inputs in the order of their first use, and the outputs.
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
