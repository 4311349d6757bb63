"""Defines a network's programs as a board loads them: streams, buffers, relocations, ports.

There is one stream a segment. Nothing here has an address. A LOAD or STORE holds an element offset
inside a buffer. The program that allocates the buffers adds their address, divided by the bytes of
an element. It adds it to each field that a relocation names (`dram_base`, bits 26 to 57 of an
instruction).
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
"""The driver's largest allocation (`VTA_MAX_XFER`)."""

RELOCATION = np.dtype(
    [("instruction", "<u4"), ("memory", "<u4"), ("buffer", "<u4"), ("offset", "<u4")]
)
"""An instruction by its place in `BoardProgram.insns`, the memory type it names (`isa.UOP` …), the
buffer it refers to and the offset in it, in elements of that type."""

BufferKind = Literal["uops", "constants", "activations"]
PortForm = Literal["image", "column", "weights"]


@dataclass(frozen=True)
class Buffer:
    """Memory of the driver, at most `MAX_BUFFER_BYTES`. Constants and micro-ops are filled once
    with `bytes` bytes from `offset` on of the file of their kind; activations hold whatever."""

    name: str
    kind: BufferKind
    bytes: int
    offset: int = 0


@dataclass(frozen=True)
class MemoryPiece:
    """Bytes `first` to `last` of something that begins at byte `offset` of a buffer there."""

    first: int
    last: int
    buffer: int
    offset: int


@dataclass(frozen=True)
class Segment:
    """A stream that runs at one go: instructions `first` to `first + count`, the last FINISH."""

    first: int
    count: int


@dataclass(frozen=True)
class Port:
    """A tensor that crosses the border between host and accelerator, and how it lies there.

    The host's tensor has `shape` and `dtype`; a float one is what `scale` makes of int8 values, a
    uint8 one is those plus 128. It lies in `buffer` from byte `offset` on. `image`: (n, c, h, w),
    maybe unfolded first, as (batches, blocks, h, w, batch, block). `column`: rows × channels,
    as (blocks, batches, batch, block), rows being whatever precedes the last axis. `weights`: rows
    × channels as a dense layer's weights, (⌈rows/block_out⌉, ⌈channels/block_in⌉, block_out,
    block_in).
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
    """A segment with the tensors that the host packs before it and unpacks after it."""

    segment: int
    loads: tuple[Port, ...]
    stores: tuple[Port, ...]


@dataclass(frozen=True, eq=False)
class BoardProgram:
    """`insns` (n, 2) of all segments, unrelocated; `relocations` (r,) of `RELOCATION`; `uops` and
    `constants` as bytes, by which buffers of these kinds are filled. `inputs` and `outputs` are the
    network's tensors on the host, in the order of its manifest: name, shape and element type. Ports
    of the same name are where they cross the border; an input may have none, or several."""

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
    """The tensors that steps take from outside, in the order of first use, and those they give;
    `between` names what the host makes of the latter."""
    stored = {port.name: port for step in steps for port in step.stores}
    inner = {*stored, *between}
    loaded: dict[str, Port] = {}
    for port in (port for step in steps for port in step.loads):
        if port.name not in inner:
            loaded.setdefault(port.name, port)
    return _values(loaded.values()), _values(stored.values())


def _values(ports: Iterable[Port]) -> tuple[Value, ...]:
    return tuple(Value(port.name, port.shape, port.dtype) for port in ports)
