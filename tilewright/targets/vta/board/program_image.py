"""Writes and reads the four files of a board's program.

`network.bin` contains tables with records of fixed size (`docs/reference/board-image.md`). The
tables refer to bytes in the other files: `instructions.bin`, `uops.bin` and `constants.bin`.
`network.bin` also contains the SHA-256 digests of the other files, and ends with its own digest.
Integers are little-endian.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.core import formats
from tilewright.targets.im2col import Unfold
from tilewright.targets.layer import Scale, Value
from tilewright.targets.vta.board.program import (
    RELOCATION,
    BoardProgram,
    Buffer,
    BufferKind,
    Port,
    PortForm,
    ProgramStep,
    Segment,
)
from tilewright.targets.vta.board.program_check import (
    DTYPES,
    FORMS,
    HOST_DTYPES,
    KINDS,
    MAX_BUFFERS,
    MAX_NAME_BYTES,
    MAX_PORTS,
    MAX_RANK,
    MAX_STREAMS,
    BoardError,
    check_program,
    why_not_bare,
)
from tilewright.targets.vta.board.runtime import (
    CONSTANTS,
    FILES,
    INSTRUCTIONS,
    NETWORK,
    SPEC_FIELDS,
    UOPS,
)
from tilewright.targets.vta.spec import VtaSpec

MAGIC = b"TWBOARD1"
BARE = 1
"""Flag in the header of a program: the C runtime can run the program without additional
software."""

_DATA = ("instruction", "uop", "constant")
_TABLES = ("buffers", "segments", "steps", "ports", "inputs", "outputs", "relocations")
HEADER = np.dtype(
    [("magic", "S8"), ("version", "<u4"), ("flags", "<u4"), ("bytes", "<u8")]
    + [(name, "<u4") for name in (*SPEC_FIELDS, *_TABLES)]
    + [("text_bytes", "<u4"), ("why_at", "<u4"), ("why_bytes", "<u4"), ("zero", "<u4")]
    + [(f"{name}_bytes", "<u8") for name in _DATA]
    + [(f"{name}_sha256", "V32") for name in _DATA]
)
_NAME = [("name_at", "<u4"), ("name_bytes", "<u4")]
BUFFER = np.dtype([*_NAME, ("kind", "<u4"), ("zero", "<u4"), ("bytes", "<u8"), ("offset", "<u8")])
SEGMENT = np.dtype([("first", "<u4"), ("count", "<u4")])
STEP = np.dtype([("segment", "<u4"), ("loads", "<u4"), ("stores", "<u4"), ("zero", "<u4")])
UNFOLD_FIELDS = (
    "rows", "cols", "stride_h", "stride_w", "pad_top", "pad_left", "height", "width",
)  # fmt: skip
PORT = np.dtype(
    [*_NAME, ("dtype", "<u4"), ("form", "<u4"), ("step", "<f4"), ("zero_point", "<i4"),
     ("buffer", "<u4"), ("zero", "<u4"), ("offset", "<u8"), ("rank", "<u4"), ("unfolded", "<u4"),
     ("shape", "<u4", (MAX_RANK,)), ("unfold", "<u4", (len(UNFOLD_FIELDS),))]
)  # fmt: skip
TENSOR = np.dtype([*_NAME, ("dtype", "<u4"), ("rank", "<u4"), ("shape", "<u4", (MAX_RANK,))])
_RECORDS = (BUFFER, SEGMENT, STEP, PORT, TENSOR, TENSOR, RELOCATION)
MAX_NETWORK_BYTES = 1 << 27
_MOST = {
    "buffers": MAX_BUFFERS, "segments": MAX_STREAMS, "steps": MAX_STREAMS, "ports": MAX_PORTS,
    "inputs": MAX_PORTS, "outputs": MAX_PORTS,
}  # fmt: skip
"""Maximum number of rows of each table, by name of the table. The table of relocations is limited
by the number of instructions instead."""
_DIGEST_BYTES = 32


def image_files(program: BoardProgram, host_work: Sequence[str] = ()) -> dict[str, bytes]:
    """Convert a program to the content of its files.

    The C runtime rejects a program that needs other work of the host or more than one step, and
    prints the reason. The files of such a program do not list the network's inputs and outputs.

    Args:
        program: the program.
        host_work: names of computations that the host must do in addition to copying, packing,
            quantising and dequantising tensors.

    Returns:
        Content of the `FILES`, by file name.

    Raises:
        BoardError: the program leaves its buffers, or is otherwise invalid.
    """
    why = why_not_bare(program, host_work)
    if why:
        program = replace(program, inputs=(), outputs=())
    check_program(program)
    files = {
        INSTRUCTIONS: np.ascontiguousarray(program.insns, "<u8").tobytes(),
        UOPS: np.ascontiguousarray(program.uops, np.uint8).tobytes(),
        CONSTANTS: np.ascontiguousarray(program.constants, np.uint8).tobytes(),
    }
    return {NETWORK: _network(program, why, files), **files}


def read_image(files: Mapping[str, bytes], spec: VtaSpec) -> BoardProgram:
    """Read a program that `image_files` wrote.

    Args:
        files: content of the files, by file name.
        spec: the machine.

    Raises:
        BoardError: the files are damaged, belong to another machine or format version, or contain a
            program that leaves its buffers.
    """
    for name in FILES:
        if name not in files:
            raise _damaged(name, "is missing")
    header, tables, names = _parts(files[NETWORK])
    for name, kind in zip((INSTRUCTIONS, UOPS, CONSTANTS), _DATA, strict=True):
        if len(files[name]) != int(header[f"{kind}_bytes"]):
            raise _damaged(name, "has another length than when it was built")
        if hashlib.sha256(files[name]).digest() != header[f"{kind}_sha256"].tobytes():
            raise _damaged(name, "has other bytes than when it was built")
    for field in SPEC_FIELDS:
        if int(header[field]) != getattr(spec, field):
            raise BoardError(
                f"{NETWORK} is for a machine with {field.upper()} {int(header[field])}, "
                f"'{spec.name}' has {getattr(spec, field)}; build the artifact for this "
                "target"
            )
    if len(files[INSTRUCTIONS]) % 16:
        raise _damaged(INSTRUCTIONS, "does not contain whole instructions")
    program = BoardProgram(
        spec,
        np.frombuffer(files[INSTRUCTIONS], "<u8").astype(np.uint64, copy=False).reshape(-1, 2),
        tables["relocations"],
        np.frombuffer(files[UOPS], np.uint8),
        np.frombuffer(files[CONSTANTS], np.uint8),
        tuple(_buffer(record, names) for record in tables["buffers"]),
        tuple(Segment(int(s["first"]), int(s["count"])) for s in tables["segments"]),
        _steps(tables["steps"], [_port(record, names) for record in tables["ports"]]),
        tuple(_tensor(record, names) for record in tables["inputs"]),
        tuple(_tensor(record, names) for record in tables["outputs"]),
    )
    names.end(header)
    check_program(program)
    if int(header["flags"]) & BARE and (why := why_not_bare(program)):
        raise _damaged(NETWORK, f"states that it needs no host, but {why}")
    return program


def is_bare(network: bytes) -> bool:
    """Return whether the C runtime can run a program without additional software.

    Args:
        network: content of the program's `network.bin`.

    Raises:
        BoardError: the file is damaged.
    """
    return bool(int(_parts(network)[0]["flags"]) & BARE)


# -- writing -----------------------------------------------------------------------------------


class _Text:
    """Writer for the table of names of an image file. Each name is terminated by a zero byte."""

    def __init__(self) -> None:
        self.bytes = b""

    def add(self, name: str) -> tuple[int, int]:
        """Append a name to the table.

        Args:
            name: the name.

        Returns:
            The byte position of the name in the table, and its length in bytes.

        Raises:
            BoardError: the name contains a zero byte, or is too long.
        """
        raw = name.encode()
        if b"\0" in raw:
            raise BoardError(
                f"the name {name!r} contains a zero byte; rename the tensor in the model"
            )
        if len(raw) > MAX_NAME_BYTES:
            raise BoardError(
                f"the name {name!r:.40} has {len(raw)} bytes, but at most {MAX_NAME_BYTES} "
                "are supported; rename the tensor in the model"
            )
        return self.reason(name)

    def reason(self, text: str) -> tuple[int, int]:
        """Append the reason why the C runtime cannot run the program, as the table's last text.

        Returns:
            The position of the text in the table, and its length in bytes.
        """
        at, raw = len(self.bytes), text.encode()
        self.bytes += raw + b"\0"
        return at, len(raw)


def _network(program: BoardProgram, why: str, files: Mapping[str, bytes]) -> bytes:
    text = _Text()
    ports = [port for step in program.steps for port in (*step.loads, *step.stores)]
    tables = [
        _table(
            BUFFER,
            ((*text.add(b.name), KINDS.index(b.kind) + 1, 0, b.bytes, b.offset)
             for b in program.buffers),
        ),
        _table(SEGMENT, ((s.first, s.count) for s in program.segments)),
        _table(STEP, ((s.segment, len(s.loads), len(s.stores), 0) for s in program.steps)),
        _table(PORT, (_port_record(port, text) for port in ports)),
        _table(TENSOR, (_tensor_record(value, text) for value in program.inputs)),
        _table(TENSOR, (_tensor_record(value, text) for value in program.outputs)),
        np.ascontiguousarray(program.relocations, RELOCATION),
    ]  # fmt: skip
    why_at, why_bytes = text.reason(why.replace("\0", "?"))
    body = b"".join(table.tobytes() for table in tables) + text.bytes
    header = np.zeros((), HEADER)
    header["magic"], header["version"] = MAGIC, formats.NETWORK.written
    header["flags"] = 0 if why else BARE
    header["bytes"] = HEADER.itemsize + len(body) + _DIGEST_BYTES
    for field in SPEC_FIELDS:
        header[field] = getattr(program.spec, field)
    for name, table in zip(_TABLES, tables, strict=True):
        header[name] = len(table)
    header["text_bytes"], header["why_at"], header["why_bytes"] = (
        len(text.bytes), why_at, why_bytes,
    )  # fmt: skip
    for name, kind in zip((INSTRUCTIONS, UOPS, CONSTANTS), _DATA, strict=True):
        header[f"{kind}_bytes"] = len(files[name])
        header[f"{kind}_sha256"] = np.void(hashlib.sha256(files[name]).digest())
    whole = header.tobytes() + body
    return whole + hashlib.sha256(whole).digest()


def _table(record: np.dtype[Any], rows: Iterable[tuple[object, ...]]) -> NDArray[np.void]:
    return np.array(list(rows), record)


def _port_record(port: Port, text: _Text) -> tuple[object, ...]:
    fold = [getattr(port.unfold, f) if port.unfold else 0 for f in UNFOLD_FIELDS]
    return (
        *text.add(port.name), DTYPES.index(port.dtype) + 1, FORMS.index(port.form) + 1,
        port.scale.step, port.scale.zero_point, port.buffer, 0, port.offset, len(port.shape),
        int(port.unfold is not None), _padded(port.shape), fold,
    )  # fmt: skip


def _tensor_record(value: Value, text: _Text) -> tuple[object, ...]:
    code = HOST_DTYPES.index(value.dtype) + 1
    return *text.add(value.name), code, len(value.shape), _padded(value.shape)


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return *shape, *[0] * (MAX_RANK - len(shape))


# -- reading -----------------------------------------------------------------------------------


def _damaged(name: str, how: str) -> BoardError:
    return BoardError(f"{name} {how}; copy the artifact again, or build it again from its model")


class _Names:
    """Reader for the table of names, in the order in which the other tables refer to the names.

    The names must not overlap, so that all names together are not longer than the file.
    """

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0

    def record_name(self, record: np.void) -> str:
        """Return the name of a table record, which must follow the names of earlier records.

        Args:
            record: the record, which contains the position and the length of the name.
        """
        at, size = int(record["name_at"]), int(record["name_bytes"])
        end = at + size
        if at != self.at or size > MAX_NAME_BYTES or end >= len(self.text) or self.text[end]:
            raise _damaged(NETWORK, "has a name outside of its name table")
        raw = self.text[at:end]
        if b"\0" in raw:
            raise _damaged(NETWORK, "has a name outside of its name table")
        self.at = end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise _damaged(NETWORK, "has a name that is not text") from None

    def end(self, header: np.void) -> None:
        """Check that the table ends with one text after the names.

        This text is the reason why the C runtime cannot run the program.

        Args:
            header: header of the file, which contains the position and the length of the text.
        """
        if (self.at, len(self.text)) != (
            int(header["why_at"]), int(header["why_at"]) + int(header["why_bytes"]) + 1,
        ):  # fmt: skip
            raise _damaged(NETWORK, "has names that belong to nothing")


def _parts(network: bytes) -> tuple[np.void, dict[str, NDArray[np.void]], _Names]:
    """Check the digest and the sizes in `network.bin`, and split its content.

    Args:
        network: content of the file.

    Returns:
        The header, the tables by name, and a reader for the names.
    """
    if len(network) > MAX_NETWORK_BYTES:
        raise _damaged(NETWORK, f"is larger than {MAX_NETWORK_BYTES >> 20} MiB")
    if len(network) < HEADER.itemsize + _DIGEST_BYTES or not network.startswith(MAGIC):
        raise _damaged(NETWORK, "is not the network of an artifact")
    if hashlib.sha256(network[:-_DIGEST_BYTES]).digest() != network[-_DIGEST_BYTES:]:
        raise _damaged(NETWORK, "has other bytes than when it was built")
    header = np.frombuffer(network, HEADER, 1)[0]
    if refusal := formats.NETWORK.refusal(NETWORK, int(header["version"])):
        raise BoardError(refusal)
    for name, most in _MOST.items():
        if int(header[name]) > most:
            raise _damaged(
                NETWORK, f"has {int(header[name])} {name}, but at most {most} are supported"
            )
    sizes = [int(header[name]) * record.itemsize
             for name, record in zip(_TABLES, _RECORDS, strict=True)]  # fmt: skip
    text_bytes = int(header["text_bytes"])
    if HEADER.itemsize + sum(sizes) + text_bytes + _DIGEST_BYTES != len(network) or len(
        network
    ) != int(header["bytes"]):
        raise _damaged(NETWORK, "has tables whose sizes differ from those in its header")
    tables, at = {}, HEADER.itemsize
    for name, record, size in zip(_TABLES, _RECORDS, sizes, strict=True):
        tables[name] = np.frombuffer(network[at : at + size], record)
        at += size
    return header, tables, _Names(network[at : at + text_bytes])


def _choice(names: tuple[str, ...], code: int) -> str:
    if not 1 <= code <= len(names):
        raise _damaged(NETWORK, f"has the unknown code {code}; known: {', '.join(names)}")
    return names[code - 1]


def _buffer(record: np.void, names: _Names) -> Buffer:
    kind = cast(BufferKind, _choice(KINDS, int(record["kind"])))
    return Buffer(names.record_name(record), kind, int(record["bytes"]), int(record["offset"]))


def _port(record: np.void, names: _Names) -> Port:
    unfold = None
    if record["unfolded"]:
        unfold = Unfold(*(int(value) for value in record["unfold"]))
    return Port(
        names.record_name(record), _shape(record), _choice(DTYPES, int(record["dtype"])),
        Scale(float(record["step"]), int(record["zero_point"])),
        cast(PortForm, _choice(FORMS, int(record["form"]))), int(record["buffer"]),
        int(record["offset"]), unfold,
    )  # fmt: skip


def _tensor(record: np.void, names: _Names) -> Value:
    dtype = _choice(HOST_DTYPES, int(record["dtype"]))
    return Value(names.record_name(record), _shape(record), dtype)


def _shape(record: np.void) -> tuple[int, ...]:
    rank = int(record["rank"])
    if rank > MAX_RANK:
        raise _damaged(NETWORK, f"has a tensor of {rank} dimensions")
    return tuple(int(size) for size in record["shape"][:rank])


def _steps(records: NDArray[np.void], ports: Sequence[Port]) -> tuple[ProgramStep, ...]:
    steps, at = [], 0
    for record in records:
        loads, stores = int(record["loads"]), int(record["stores"])
        end = at + loads + stores
        steps.append(
            ProgramStep(int(record["segment"]), tuple(ports[at : at + loads]),
                 tuple(ports[at + loads : end]))
        )  # fmt: skip
        at = end
    if at != len(ports):
        raise _damaged(NETWORK, "has tensors that belong to no step")
    return tuple(steps)
