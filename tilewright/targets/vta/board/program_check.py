"""Checks a board's program before anything runs.

The first check proves that the program stays inside its own memory. The C runtime repeats this
proof for the files that it loads, and accepts every program that this check accepts.

The second check determines whether the C runtime can run a program without additional software. The
runtime can pack, copy, quantise and dequantise tensors; it does no other work of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.targets.layer import Scale, Value
from tilewright.targets.vta.board.program import (
    MAX_BUFFER_BYTES,
    BoardProgram,
    Buffer,
    Port,
    ProgramStep,
)
from tilewright.targets.vta.instruction_format import FINISH, LOAD, OUT, STORE, UOP, element_bytes
from tilewright.targets.vta.spec import VtaSpec

MAX_RANK = 8
"""Maximum number of dimensions of a tensor that is exchanged with the host."""
MAX_DIMENSION = (1 << 24) - 1
"""Maximum size of each dimension of an exchanged tensor, and of each number that describes an
unfolding (im2col). The product of two such numbers fits into 64 bits."""
MAX_TENSOR_BYTES = 1 << 28
"""Maximum size in bytes of an exchanged tensor in the host's element type."""
MAX_PORTS = 1024
"""Maximum number of tensors that all steps together exchange with the host. It is also the maximum
number of inputs and outputs of a network."""
MAX_NAME_BYTES = 1024
"""Maximum length in UTF-8 bytes of the name of a tensor or buffer."""
MAX_BUFFERS, MAX_STREAMS = 1 << 12, 1 << 16
"""Maximum number of buffers, and maximum number of segments and of steps."""
MAX_MEMORY_BYTES = 1 << 30
"""Maximum total size of all buffers in bytes. No supported board has more memory."""
KINDS = ("uops", "constants", "activations")
DTYPES = ("int8", "float32", "int32", "uint8", "int64")
"""Element types of the tensors that steps exchange with the host."""
HOST_DTYPES = (
    *DTYPES, "bool", "float16", "float64", "int16", "uint16", "uint32", "uint64",
)  # fmt: skip
"""Element types of the inputs and outputs of a network. Types that are not in `DTYPES` are allowed
because only the host may use an input or output."""
FORMS = ("image", "column", "weights")


class BoardError(TilewrightError):
    """Raised if no board can run a program, or if files do not contain a program."""


def tensor_bytes(tensor: Port | Value) -> int:
    """Return the size of a host tensor in bytes."""
    return prod(tensor.shape) * np.dtype(tensor.dtype).itemsize


def fits_table(tensor: Value) -> bool:
    """Return whether the file format can describe an input or output of a network.

    Args:
        tensor: name, shape and type of the input or output.
    """
    return (
        tensor.dtype in HOST_DTYPES
        and len(tensor.shape) <= MAX_RANK
        and all(0 <= size <= MAX_DIMENSION for size in tensor.shape)
        and tensor_bytes(tensor) <= MAX_TENSOR_BYTES
    )


def packed_shape(port: Port, spec: VtaSpec, *, load: bool) -> tuple[int, ...]:
    """Return the shape in which a port's tensor is stored in its buffer, in int8 values.

    Args:
        port: the port.
        spec: the machine.
        load: True if the accelerator loads the tensor, False if it stores the tensor.

    Returns:
        (batches, blocks, h, w, batch, block) for an image, whose missing dimensions are 1; four
        dimensions for a column and for weights.
    """
    block = spec.block_in if load else spec.block_out
    if port.form == "image":
        n, c, h, w = (*port.shape, 1, 1, 1, 1)[:4]
        if port.unfold:
            c, h, w = port.unfold.channels(c), port.unfold.height, port.unfold.width
        return -(-n // spec.batch), -(-c // block), h, w, spec.batch, block
    rows, channels = prod(port.shape[:-1]), port.shape[-1]
    if port.form == "column":
        return -(-channels // block), -(-rows // spec.batch), spec.batch, block
    return (
        -(-rows // spec.block_out), -(-channels // spec.block_in), spec.block_out, spec.block_in,
    )  # fmt: skip


def check_program(program: BoardProgram) -> None:
    """Check that a program stays inside its buffers and that its tables are consistent.

    Raises:
        BoardError: the program is invalid. The message names the first problem.
    """
    for what, count, most in (
        ("buffers", len(program.buffers), MAX_BUFFERS),
        ("segments", len(program.segments), MAX_STREAMS),
        ("steps", len(program.steps), MAX_STREAMS),
    ):
        _require(count <= most, f"it has {count} {what}, but at most {most} are supported")
    for at, buffer in enumerate(program.buffers):
        _check_buffer(program, at, buffer)
    memory = sum(buffer.bytes for buffer in program.buffers)
    _require(
        memory <= MAX_MEMORY_BYTES,
        f"its buffers have {memory} bytes, but at most {MAX_MEMORY_BYTES} are supported",
    )
    _check_streams(program)
    _check_relocations(program)
    ports = sum(len(step.loads) + len(step.stores) for step in program.steps)
    _require(
        ports <= MAX_PORTS,
        f"its steps read and write {ports} tensors, but at most {MAX_PORTS} are supported",
    )
    for step in program.steps:
        _require(
            0 <= step.segment < len(program.segments),
            f"a step runs segment {step.segment}, which does not exist",
        )
        for port in step.loads:
            _check_port(program, port, load=True)
        for port in step.stores:
            _check_port(program, port, load=False)
        _check_names(step)
        _check_apart(program, step.loads)
    _check_border(program.inputs, [p for step in program.steps for p in step.loads])
    _check_border(program.outputs, [p for step in program.steps for p in step.stores])
    border = len(program.inputs) + len(program.outputs)
    _require(
        border <= MAX_PORTS,
        f"it has {border} inputs and outputs, but at most {MAX_PORTS} are supported",
    )


def _require(holds: bool, wrong: str) -> None:
    if not holds:
        raise BoardError(
            f"this is not a program for a board: {wrong}; build the artifact again from its model"
        )


def _check_buffer(program: BoardProgram, at: int, buffer: Buffer) -> None:
    name = f"buffer {at} ('{buffer.name}')"
    _require(buffer.kind in KINDS, f"{name} has the unknown kind {buffer.kind!r}")
    _require(
        0 < buffer.bytes <= MAX_BUFFER_BYTES,
        f"{name} has {buffer.bytes} bytes, but a driver allocates 1 to {MAX_BUFFER_BYTES}",
    )
    held = {"uops": program.uops.size, "constants": program.constants.size, "activations": None}
    size = held[buffer.kind]
    if size is None:
        _require(buffer.offset == 0, f"{name} has a file offset but is not filled from a file")
    else:
        _require(
            0 <= buffer.offset <= size - buffer.bytes,
            f"{name} is filled from bytes {buffer.offset} to {buffer.offset + buffer.bytes} "
            f"of a file with {size} bytes",
        )


def _check_streams(program: BoardProgram) -> None:
    """Check that each segment's stream ends with its only FINISH and fits one buffer."""
    count = len(program.insns)
    finishes = np.flatnonzero(program.insns[:, 0] & np.uint64(7) == FINISH)
    for at, segment in enumerate(program.segments):
        _require(
            segment.first >= 0 and 0 < segment.count <= count - segment.first,
            f"segment {at} consists of instructions {segment.first} to "
            f"{segment.first + segment.count}, but the program has {count}",
        )
        _require(
            segment.count * 16 <= MAX_BUFFER_BYTES,
            f"segment {at} has {segment.count} instructions, which do not fit into one buffer",
        )
        last = segment.first + segment.count - 1
        begin, end = np.searchsorted(finishes, (segment.first, last + 1)).tolist()
        inside = finishes[begin:end][:3].tolist()
        _require(
            inside == [last],
            f"segment {at} must end with its only FINISH, but has FINISH at {inside}",
        )


def _check_relocations(program: BoardProgram) -> None:
    """Check that every LOAD and STORE has a relocation and stays inside its memory buffer."""
    table, insns = program.relocations, program.insns
    at = table["instruction"].astype(np.int64)
    low = insns[:, 0]
    moves = np.isin(low & np.uint64(7), (LOAD, STORE))
    sizes = _field(insns[:, 1], 16, 16)
    # According to its fields, the instruction moves no rows. The hardware would count down from
    # 65,535 rows, or never end.
    endless = np.flatnonzero(moves & (sizes > 0) & (_field(insns[:, 1], 0, 16) == 0))
    _require(endless.size == 0, f"instruction {endless[:1]} moves columns of no rows")
    _require(bool((np.diff(at) > 0).all()), "its relocations are not sorted by instruction")
    _require(
        at.size == 0 or int(at[-1]) < len(insns),
        "a relocation refers to an instruction that does not exist",
    )
    _require(bool(moves[at].all()), "a relocation refers to an instruction that moves no data")
    named = np.zeros(len(insns), np.bool_)
    named[at] = True
    bare = np.flatnonzero(moves & (sizes > 0) & ~named)
    _require(bare.size == 0, f"instruction {bare[:1]} moves data but has no relocation")

    memory, buffer = table["memory"].astype(np.int64), table["buffer"].astype(np.int64)
    stores = (low[at] & np.uint64(7)) == STORE
    allowed = np.where(stores, memory == OUT, memory < OUT)
    _require(
        bool((allowed & (memory == _field(low[at], 7, 3))).all()),
        "a relocation has another memory type than its instruction",
    )
    _require(
        bool((buffer < len(program.buffers)).all()),
        "a relocation refers to a buffer that does not exist",
    )
    kinds = np.array([KINDS.index(b.kind) for b in program.buffers], np.int64)[buffer]
    wanted = np.where(stores, kinds == 2, np.where(memory == UOP, kinds == 0, kinds > 0))
    _require(bool(wanted.all()), "an instruction reads or writes a buffer of the wrong kind")
    offset = table["offset"].astype(np.int64)
    _require(
        bool((offset == _field(low[at], 26, 32)).all()),
        "a relocation has another offset than its instruction",
    )
    high = insns[at, 1]
    rows, columns, pitch = _field(high, 0, 16), sizes[at], _field(high, 32, 16)
    reach = np.where(columns > 0, (rows - 1) * pitch + columns, 0)
    ends = (offset + reach) * element_bytes(program.spec.machine)[memory]
    room = np.array([b.bytes for b in program.buffers], np.int64)[buffer]
    beyond = np.flatnonzero(ends > room)
    _require(beyond.size == 0, f"instruction {at[beyond[:1]]} accesses data beyond its buffer")


def _field(words: NDArray[np.uint64], offset: int, width: int) -> NDArray[np.int64]:
    return (words >> np.uint64(offset) & np.uint64((1 << width) - 1)).astype(np.int64)


def _check_port(program: BoardProgram, port: Port, *, load: bool) -> None:
    name = f"tensor '{port.name}'"
    _require(port.dtype in DTYPES, f"{name} has the unsupported type {port.dtype}")
    _require(port.form in FORMS, f"{name} has the unknown form {port.form!r}")
    _require(
        1 <= len(port.shape) <= (4 if port.form == "image" else MAX_RANK)
        and all(1 <= size <= MAX_DIMENSION for size in port.shape)
        and tensor_bytes(port) <= MAX_TENSOR_BYTES,
        f"{name} has the invalid shape {port.shape}",
    )
    _check_scale(name, port.scale)
    if unfold := port.unfold:
        sizes = (unfold.rows, unfold.cols, unfold.stride_h, unfold.stride_w, unfold.height,
                 unfold.width)  # fmt: skip
        pads = (unfold.pad_top, unfold.pad_left)
        _require(
            load and port.form == "image" and min(sizes) > 0 and min(pads) >= 0
            and max(*sizes, *pads) <= MAX_DIMENSION,
            f"{name} cannot be unfolded in this way",
        )  # fmt: skip
    _require(0 <= port.buffer < len(program.buffers), f"{name} is in no buffer")
    buffer = program.buffers[port.buffer]
    _require(buffer.kind == "activations", f"{name} is in a buffer of kind {buffer.kind}")
    m = program.spec.machine
    element = m.inp_bytes if load else m.out_bytes
    if port.form == "weights":
        _require(load, f"{name} cannot be stored as weights")
        element = m.wgt_bytes
    _require(
        port.offset >= 0 and port.offset % element == 0
        and port.offset + prod(packed_shape(port, program.spec, load=load)) <= buffer.bytes,
        f"{name} does not fit into its buffer",
    )  # fmt: skip


def _check_scale(name: str, scale: Scale) -> None:
    """Check that every host can use a quantisation scale.

    The step must be a positive normal float32 number, so that every host can divide by it. The zero
    point must fit int8.

    Args:
        name: name of the tensor, for error messages.
        scale: the scale.
    """
    with np.errstate(over="ignore"):
        step = float(np.float32(scale.step))
    _require(
        float(np.finfo(np.float32).tiny) <= step < inf and step == scale.step,
        f"{name} has the invalid step {scale.step}",
    )
    _require(
        -128 <= scale.zero_point <= 127, f"{name} has the invalid zero point {scale.zero_point}"
    )


def _check_border(tensors: Sequence[Value], ports: Sequence[Port]) -> None:
    """Check the inputs or the outputs of the whole network.

    Their names must be unique. A port is a tensor that a segment exchanges with the host. If a port
    has the name of a network tensor, both must have the same element type and number of elements.

    Args:
        tensors: inputs or outputs of the network.
        ports: the ports for inputs, or for outputs, of all segments.
    """
    named: dict[str, Value] = {}
    for tensor in tensors:
        _require(
            fits_table(tensor),
            f"the tensor '{tensor.name}' has the unsupported type {tensor.dtype} or shape "
            f"{tensor.shape}",
        )
        _require(tensor.name not in named, f"two tensors have the name '{tensor.name}'")
        named[tensor.name] = tensor
    for port in ports:
        _require(_same(named.get(port.name, port), port), f"'{port.name}' has two shapes")


def _same(a: Port | Value, b: Port | Value) -> bool:
    """Return whether two tensors have the same element type and the same number of elements."""
    return a.dtype == b.dtype and prod(a.shape) == prod(b.shape)


def _check_names(step: ProgramStep) -> None:
    """Check the names of the tensors that one segment exchanges with the host.

    Inputs with the same name must have the same element type and number of elements. The names of
    outputs must be unique.

    Args:
        step: the segment with its inputs and outputs.
    """
    seen: dict[str, tuple[object, ...]] = {}
    for port in step.loads:
        tensor = prod(port.shape), port.dtype
        _require(seen.setdefault(port.name, tensor) == tensor, f"'{port.name}' has two shapes")
    stored = [port.name for port in step.stores]
    _require(
        len(set(stored)) == len(stored), f"a name is stored more than once: {', '.join(stored)}"
    )


def _check_apart(program: BoardProgram, loads: tuple[Port, ...]) -> None:
    """Check that no two tensors that the host writes before a segment overlap in memory.

    Tensors that the host reads may overlap, because one tensor can be a range of another tensor's
    channels.

    Args:
        program: the program.
        loads: the tensors that the host writes.
    """
    ranges = sorted(
        (p.buffer, p.offset, p.offset + prod(packed_shape(p, program.spec, load=True)), p.name)
        for p in loads
    )
    for (buffer, _, end, name), (other, start, _, after) in pairwise(ranges):
        _require(buffer != other or end <= start, f"the tensors '{name}' and '{after}' overlap")


RUNTIME_DTYPES = ("int8", "uint8", "float32")
"""Element types that the C runtime can convert from and to int8."""


def why_not_bare(program: BoardProgram, host_work: Sequence[str] = ()) -> str:
    """Explain why the C runtime cannot run a program without additional software.

    Args:
        program: the program.
        host_work: names of computations that the host must do in addition.

    Returns:
        The reason, or an empty string if the C runtime can run the program.
    """
    ports = [port for step in program.steps for port in (*step.loads, *step.stores)]
    foreign = [f"{p.name} is {p.dtype}" for p in ports if p.dtype not in RUNTIME_DTYPES]
    weights = [p.name for p in ports if p.form == "weights"]
    bits = 1 << program.spec.log_inp_width
    if host_work:
        return f"the host must compute {', '.join(host_work)}"
    if len(program.steps) != 1:
        return f"it runs in {len(program.steps)} steps with work for the host between them"
    if weights:
        return f"the host must pack {', '.join(weights)} as weights"
    if foreign:
        return f"{', '.join(foreign)}, but the runtime only supports int8, uint8 and float32"
    if bits != 8:
        return f"activations have {bits} bits instead of 8"
    return _why_not_whole(program)


def _why_not_whole(program: BoardProgram) -> str:
    """Explain why the C runtime cannot provide all inputs and outputs of the network.

    Returns:
        The reason, or an empty string if the C runtime can provide them.
    """
    step = program.steps[0]
    inputs = {value.name for value in program.inputs}
    stored = {port.name for port in step.stores}
    foreign = [port.name for port in step.loads if port.name not in inputs]
    copied = [value.name for value in program.outputs if value.name not in stored]
    strange = [f"{v.name} is {v.dtype} with shape {v.shape}"
               for v in (*program.inputs, *program.outputs) if not fits_table(v)]  # fmt: skip
    if foreign:
        return f"the host must compute {', '.join(foreign)}, which no input provides"
    if copied:
        return f"the host must compute {', '.join(copied)}, which no layer writes in this form"
    if strange:
        return f"{', '.join(strange)}, which the runtime does not support"
    return ""
