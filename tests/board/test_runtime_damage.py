"""Checks that the C runtime rejects damaged files with an error code and a message.

If a changed file is still valid, the C runtime must agree with the Python reader.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.board.boards import linked, run, write_artifact
from tests.board.programs import one_layer, with_ports
from tilewright.targets.layer import Scale, Value
from tilewright.targets.vta.board.program import RELOCATION, BoardProgram, Buffer
from tilewright.targets.vta.board.program_check import MAX_BUFFERS, BoardError
from tilewright.targets.vta.board.program_image import (
    BUFFER,
    FILES,
    HEADER,
    INSTRUCTIONS,
    NETWORK,
    PORT,
    SEGMENT,
    STEP,
    TENSOR,
    image_files,
    read_image,
)
from tilewright.targets.vta.board.runtime import SPEC_FIELDS
from tilewright.targets.vta.instruction_format import ACC, INP, OUT, UOP, WGT
from tilewright.targets.vta.spec import VtaSpec

PYNQ = VtaSpec.load("vta-pynq")
UNSUPPORTED = 4
Files = dict[str, bytes]


@dataclass(frozen=True)
class Opener:
    """A process that opens an artifact folder with the C runtime, again and again."""

    process: subprocess.Popen[str]
    folder: Path

    def open(self, files: Files) -> tuple[int, str]:
        """Replace files of the folder and open it. Return the error code and the message."""
        assert self.process.stdin
        assert self.process.stdout
        for name, data in files.items():
            (self.folder / name).write_bytes(data)
        self.process.stdin.write(f"{self.folder}\n")
        self.process.stdin.flush()
        code, _, message = self.process.stdout.readline().partition(" ")
        assert code, "the runtime ended"
        return int(code), message.strip()


@pytest.fixture(scope="module")
def program() -> BoardProgram:
    """Return a small layer with an unfolded float input, and with an input that nothing reads."""
    made = one_layer("conv2d:c=3,h=6,w=6,o=16,k=2,s=2", PYNQ, unfold=(2, 2))
    program = with_ports(made, Scale(0.75, -3), Scale(1.5, 9))
    return replace(program, inputs=(Value("ids", (2, 3), "int64"), *program.inputs))


@pytest.fixture
def opener(sanitized: Path, tmp_path: Path) -> Iterator[Opener]:
    """Yield an opener process. Afterwards it must exit normally, without a memory leak."""
    binary = linked("open_many.c", sanitized, tmp_path / "open_many")
    (tmp_path / "art").mkdir()
    said = tmp_path / "said"
    with said.open("w") as errors:
        process = subprocess.Popen(
            [str(binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        yield Opener(process, tmp_path / "art")
        process.communicate()
    assert (process.returncode, said.read_text()) == (0, "")


def signed(network: bytes) -> bytes:
    """Return `network.bin` with a new, correct digest at its end."""
    return network[:-32] + hashlib.sha256(network[:-32]).digest()


def with_data(files: Files, name: str, data: bytes) -> Files:
    """Replace a data file, and its digest in `network.bin`."""
    kind = {"instructions.bin": "instruction", "uops.bin": "uop", "constants.bin": "constant"}[name]
    network = bytearray(files[NETWORK])
    at = HEADER.fields[f"{kind}_sha256"][1]  # type: ignore[index]
    network[at : at + 32] = hashlib.sha256(data).digest()
    return {**files, name: data, NETWORK: signed(bytes(network))}


def accepted(files: Files) -> bool:
    """Return whether the Python reader accepts the files."""
    try:
        read_image(files, PYNQ)
    except BoardError:
        return False
    return True


@pytest.mark.slow(seconds=0.5)
def test_every_changed_byte_is_noticed(opener: Opener, program: BoardProgram) -> None:
    files = image_files(program)
    assert opener.open(files)[0] == 0
    rng = np.random.default_rng(0)
    for name in FILES:
        size = len(files[name])
        for at in [*range(0, min(size, 300), 3), *rng.integers(0, size, 40).tolist(), size - 1]:
            changed = bytearray(files[name])
            changed[at] ^= int(rng.integers(1, 256))
            code, message = opener.open({**files, name: bytes(changed)})
            assert code == 3, (name, at)
            assert name in message
    opener.open(files)


def test_cut_long_and_foreign_files_are_noticed(opener: Opener, program: BoardProgram) -> None:
    files = image_files(program)
    for name in FILES:
        size = len(files[name])
        for data in [files[name][:at] for at in (0, 1, 8, 32, 223, 255, 256, size - 1)] + [
            files[name] + b"\0", b"\x7fELF" + bytes(4000), files[name] * 2,
        ]:  # fmt: skip
            if data != files[name]:
                code, message = opener.open({**files, name: data})
                assert code == 3
                assert name in message
        (opener.folder / name).unlink()
        code, message = opener.open({other: files[other] for other in FILES if other != name})
        assert code == 2
        assert f"cannot open {opener.folder / name}" in message
        (opener.folder / name).mkdir()
        assert opener.open({})[0] == 2
        (opener.folder / name).rmdir()
        opener.open(files)


@pytest.mark.slow(seconds=4)
def test_wrong_tables_are_refused_as_python_refuses_them(
    opener: Opener, program: BoardProgram
) -> None:
    files = image_files(program)
    network = files[NETWORK]
    taken = 0
    for at in range(8, len(network) - 32, 4):
        old = int.from_bytes(network[at : at + 4], "little")
        values = {0, old + 1, old - 1, old * 2, len(network), 0x7FFFFFFF, 0xFFFFFFFF}
        for value in sorted(value % (1 << 32) for value in values):
            if value == old:
                continue
            changed = network[:at] + value.to_bytes(4, "little") + network[at + 4 :]
            mutant = {**files, NETWORK: signed(changed)}
            code, message = opener.open(mutant)
            assert bool(code) == bool(message), (at, value)
            if code == 0:
                taken += 1
                assert agrees(mutant), (at, value)
            elif code != UNSUPPORTED:
                assert code in (3, 5), (at, value, message)
                assert not accepted(mutant), (at, value, message)
    assert taken > 20


def agrees(files: Files) -> bool:
    """Return whether the Python reader accepts the files too, apart from checks that C lacks.

    C does not check whether names are valid text, or whether tensors share memory.
    """
    try:
        read_image(files, PYNQ)
    except BoardError as error:
        return any(why in str(error) for why in ("overlap", "is not text"))
    return True


@pytest.mark.attack
@pytest.mark.parametrize("key", SPEC_FIELDS)
def test_an_artifact_does_not_say_what_machine_there_is(
    key: str, opener: Opener, program: BoardProgram
) -> None:
    """The C runtime must not take the machine from the artifact.

    If an artifact could claim blocks of one output channel, stores would be checked as if they
    wrote a sixteenth of their bytes.
    """
    files = image_files(program)
    at, own = HEADER.fields[key][1], getattr(PYNQ, key)  # type: ignore[index]
    for value in {0, own + 1, 0xFFFFFFFF} - {own}:
        changed = bytearray(files[NETWORK])
        changed[at : at + 4] = value.to_bytes(4, "little")
        mutant = {**files, NETWORK: signed(bytes(changed))}
        code, message = opener.open(mutant)
        text = f"with {key.upper()} {value}, this runtime for one with {own}; build"
        assert (code, text in message) == (UNSUPPORTED, True), message
        assert not accepted(mutant)


@pytest.mark.attack
@pytest.mark.parametrize("memory", [UOP, WGT, INP, ACC, OUT])
def test_a_transfer_of_no_rows_is_refused(
    memory: int, opener: Opener, program: BoardProgram
) -> None:
    """The bounds check of a transfer with zero rows passes trivially.

    A device would count its rows down from 65,535, or never finish.
    """
    files, insns = image_files(program), program.insns.copy()
    rows = program.relocations
    at = int(rows["instruction"][rows["memory"] == memory][0])
    insns[at, 1] &= ~np.uint64(0xFFFF)
    mutant = with_data(files, INSTRUCTIONS, insns.tobytes())
    code, message = opener.open(mutant)
    assert (code, "moves columns of no rows" in message) == (3, True)
    with pytest.raises(BoardError, match=rf"instruction \[{at}\] moves columns of no rows"):
        read_image(mutant, PYNQ)
    insns[at, 1] = 0  # an empty transfer only passes tokens
    assert opener.open(with_data(files, INSTRUCTIONS, insns.tobytes()))[0] == 0


def with_texts(network: bytes, text: bytes, place: Callable[[int], tuple[int, int]]) -> bytes:
    """Replace the text section of `network.bin`.

    `place(n)` gives the offset and length in `text` of the name of record n.
    """
    header = np.frombuffer(network, HEADER, 1).copy()
    at, tables, number = HEADER.itemsize, b"", 0
    counted = (("buffers", BUFFER), ("segments", SEGMENT), ("steps", STEP), ("ports", PORT),
               ("inputs", TENSOR), ("outputs", TENSOR), ("relocations", RELOCATION))  # fmt: skip
    for name, record in counted:
        rows = np.frombuffer(network, record, int(header[0][name]), at).copy()
        at += rows.nbytes
        for row in rows if "name_at" in (record.names or ()) else ():
            row["name_at"], row["name_bytes"] = place(number)
            number += 1
        tables += rows.tobytes()
    header[0]["why_at"], header[0]["why_bytes"] = len(text), 0
    header[0]["text_bytes"] = len(text) + 1
    header[0]["bytes"] = HEADER.itemsize + len(tables) + len(text) + 1 + 32
    return signed(header.tobytes() + tables + text + bytes(33))


MANY = 1000


@pytest.fixture(scope="module")
def wide(program: BoardProgram) -> BoardProgram:
    """Return the program with a thousand more inputs. Their long names differ only at the end."""
    more = [Value("i" * 1020 + f"{k:04}", (1,), "int64") for k in range(MANY)]
    return replace(program, inputs=(*program.inputs, *more))


@pytest.mark.attack
def test_names_inside_one_another_are_refused_at_once(opener: Opener, wide: BoardProgram) -> None:
    """Overlapping names must be refused before they are read and compared.

    Without this check, a file of 1.1 MB took half a minute in C and a gigabyte of memory in Python.
    """
    files, size = image_files(wide), 1 << 20
    assert opener.open(files) == (0, "")
    assert accepted(files)
    for place in (
        lambda number: (number, size - number),  # each name is a suffix of the text
        lambda number: (0, size),
        lambda number: (1025 * number, 1024 if number else 0),
        lambda number: (0xFFFFFFFF, 0xFFFFFFFF),
    ):
        mutant = {**files, NETWORK: with_texts(files[NETWORK], b"a" * size + b"\0", place)}
        code, message = opener.open(mutant)
        assert (code, "a name is" in message) == (3, True), message
        assert not accepted(mutant)


@pytest.mark.attack
def test_what_a_table_may_hold_is_bounded(opener: Opener, program: BoardProgram) -> None:
    files = image_files(program)
    network = files[NETWORK]
    header = np.frombuffer(network, HEADER, 1).copy()
    buffers = int(header[0]["buffers"])
    one = network[HEADER.itemsize :][: BUFFER.itemsize]
    header[0]["buffers"] += MAX_BUFFERS
    header[0]["bytes"] += MAX_BUFFERS * BUFFER.itemsize
    body = one * MAX_BUFFERS + network[HEADER.itemsize :]
    mutant = {**files, NETWORK: signed(header.tobytes() + body)}
    assert opener.open(mutant)[0] == 3
    message = f"has {buffers + MAX_BUFFERS} buffers, but at most 4096 are supported"
    with pytest.raises(BoardError, match=message):
        read_image(mutant, PYNQ)


@pytest.mark.attack
def test_a_large_network_is_not_read(opener: Opener, program: BoardProgram) -> None:
    files = image_files(program)
    opener.open(files)
    os.truncate(opener.folder / NETWORK, (1 << 27) + 1)
    code, message = opener.open({})
    assert (code, "larger than 128 MiB" in message) == (2, True)
    with pytest.raises(BoardError, match="larger than 128 MiB"):
        read_image({**files, NETWORK: bytes((1 << 27) + 1)}, PYNQ)


@pytest.mark.attack
def test_buffers_are_no_more_than_a_board_has(opener: Opener, program: BoardProgram) -> None:
    at = next(k for k, buffer in enumerate(program.buffers) if buffer.kind == "activations")
    most = Buffer("more", "activations", 1 << 25)
    files = image_files(replace(program, buffers=[*program.buffers, *[most] * 31]))
    network = bytearray(files[NETWORK])
    place = HEADER.itemsize + at * BUFFER.itemsize + BUFFER.fields["bytes"][1]  # type: ignore[index]
    network[place : place + 8] = most.bytes.to_bytes(8, "little")
    mutant = {**files, NETWORK: signed(bytes(network))}
    code, message = opener.open(mutant)
    assert (code, "larger than the memory of a board" in message) == (3, True), message
    with pytest.raises(BoardError, match="its buffers have 10737"):
        read_image(mutant, PYNQ)


def test_wrong_streams_are_refused_as_python_refuses_them(
    opener: Opener, program: BoardProgram
) -> None:
    files = image_files(program)
    rng = np.random.default_rng(1)
    codes = set()
    for _ in range(300):
        insns = bytearray(files[INSTRUCTIONS])
        for _ in range(int(rng.integers(1, 3))):
            at = int(rng.integers(0, len(insns)))
            insns[at] ^= 1 << int(rng.integers(0, 8))
        mutant = with_data(files, INSTRUCTIONS, bytes(insns))
        code, message = opener.open(mutant)
        assert (code == 0) == accepted(mutant), message
        codes.add(code)
    assert codes == {0, 3}
    for length in (0, 16, 24, len(files[INSTRUCTIONS]) - 16):
        mutant = with_data(files, INSTRUCTIONS, files[INSTRUCTIONS][:length])
        assert opener.open(mutant)[0] == 3
        assert not accepted(mutant)


def test_work_of_the_host_is_refused_with_its_name(
    program: BoardProgram, tmp_path: Path, sanitized: Path
) -> None:
    artifact = write_artifact(tmp_path / "art", program, "softmax", "\x1b[31mresize")
    done = run(sanitized, artifact, bytes(108), PYNQ)
    assert (done.code, done.output, done.streams) == (2, None, [])
    assert "the host must compute softmax, ?[31mresize; build it with --bare" in done.said


def with_reason(network: bytes, why: bytes) -> bytes:
    """Mark a network as one that needs the host, with the given reason."""
    header = np.frombuffer(network, HEADER, 1).copy()
    at = int(header[0]["why_at"])
    rest = network[HEADER.itemsize : -32]
    rest = rest[: len(rest) - int(header[0]["text_bytes"]) + at]
    header[0]["flags"], header[0]["why_bytes"] = 0, len(why)
    header[0]["text_bytes"] = at + len(why) + 1
    header[0]["bytes"] = HEADER.itemsize + len(rest) + len(why) + 1 + 32
    return signed(header.tobytes() + rest + why + bytes(33))


COMMANDS = {
    b"\x1b[31m": "?[31m", b"\xc2\x9b31m": "?31m", b"\x9b31m": "?31m", b"\xe0\x82\x9b": "?",
    b"a\rb\x7f": "a?b?", b"\xe2\x80\xae": "?", b"\xe2\x80\xa8": "?", b"\xf3\xa0\x80\x81": "?",
    b"\xed\xa0\x80": "?", b"\xf5\x80\x80\x80": "?", b"\xc3": "?", b"\xe2\x82": "??",
    b"\xc1\x81": "?", b"\xe0\x81\x81": "?", "β → é 水 🙂".encode(): "β → é 水 🙂",
}  # fmt: skip


@pytest.mark.attack
@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_gets_no_commands(name: bytes, opener: Opener, program: BoardProgram) -> None:
    files = image_files(program)
    code, message = opener.open({**files, NETWORK: with_reason(files[NETWORK], b"<" + name + b">")})
    assert code == UNSUPPORTED
    assert f"without Python: <{COMMANDS[name]}>; build" in message


@pytest.mark.attack
def test_whatever_a_name_is_a_message_is_text(opener: Opener, program: BoardProgram) -> None:
    files, rng = image_files(program), np.random.default_rng(3)
    for size in (200, 399, 400, 401, 1000):
        for _ in range(20):
            noise = rng.integers(1, 256, size, np.uint8).tobytes()
            text = "".join(map(chr, rng.integers(1, 0xD800, size // 2).tolist())).encode()
            for why in (noise, text, b"a" * int(rng.integers(300, 350)) + text):
                mutant = {**files, NETWORK: with_reason(files[NETWORK], why)}
                message = opener.open(mutant)[1]  # must be valid UTF-8
                assert not [c for c in message if unicodedata.category(c) in ("Cc", "Zl", "Zp")]
                assert not set(message) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068")


PLANTS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.attack
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("name", FILES)
def test_no_file_is_waited_for(
    plant: str, name: str, program: BoardProgram, tmp_path: Path, sanitized: Path
) -> None:
    artifact = write_artifact(tmp_path / "art", program)
    (artifact / name).unlink()
    PLANTS[plant](artifact / name)
    (artifact / "input.bin").write_bytes(bytes(108 + 48))
    command = [sanitized / "tilewright_run", artifact, artifact / "input.bin", artifact / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    said = "is a link; put the file itself there" if plant == "link" else "is no plain file"
    assert (done.returncode, f"{name} {said}" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("folder", ["", "nowhere", "input.bin"])
def test_a_folder_that_is_no_artifact(folder: str, tmp_path: Path, sanitized: Path) -> None:
    (tmp_path / "input.bin").write_bytes(b"x")
    done = subprocess.run(
        [str(sanitized / "tilewright_run"), str(tmp_path / folder), str(tmp_path / "input.bin"),
         str(tmp_path / "output.bin")],
        capture_output=True, text=True, check=False, env={**os.environ},
    )  # fmt: skip
    assert done.returncode == 2
    assert "is it the folder of an artifact?" in done.stderr
    assert done.stderr.count("\n") == 1
