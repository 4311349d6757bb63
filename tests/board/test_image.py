"""Checks that board programs are read back as written, and transfers stay in their buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.board.programs import one_layer
from tilewright.targets.im2col import Unfold
from tilewright.targets.layer import Scale, Value
from tilewright.targets.vta.board.program import BoardProgram, Buffer, Port, ProgramStep, Segment
from tilewright.targets.vta.board.program_check import BoardError, why_not_bare
from tilewright.targets.vta.board.program_image import (
    CONSTANTS,
    FILES,
    INSTRUCTIONS,
    NETWORK,
    image_files,
    is_bare,
    read_image,
)
from tilewright.targets.vta.spec import VtaSpec

PYNQ = VtaSpec.load("vta-pynq")
Change = Callable[[BoardProgram], BoardProgram]


@pytest.fixture(scope="module")
def program() -> BoardProgram:
    """Return a one-layer program whose input is unfolded."""
    return one_layer("conv2d:c=3,h=15,w=13,o=16,k=7,s=2,p=3", PYNQ, unfold=(2, 2)).program


def test_a_program_is_read_as_it_was_written(program: BoardProgram) -> None:
    files = image_files(program)
    assert tuple(sorted(files)) == tuple(sorted(FILES))
    read = read_image(files, PYNQ)
    for name in ("insns", "relocations", "uops", "constants"):
        np.testing.assert_array_equal(getattr(read, name), getattr(program, name))
    assert list(read.buffers) == list(program.buffers)
    assert list(read.segments) == list(program.segments)
    assert list(read.steps) == list(program.steps)
    assert (read.inputs, read.outputs) == (program.inputs, program.outputs)
    assert isinstance(read.steps[0].loads[0].unfold, Unfold)
    assert image_files(read) == files
    assert is_bare(files[NETWORK])


def test_steps_with_work_between_them_are_kept_and_not_bare(program: BoardProgram) -> None:
    step = program.steps[0]
    data = replace(step.loads[0], name="β", dtype="int64", unfold=None)
    weights = Port("k", (4, 5, 6), "int8", Scale(0.75, 3), "weights", 3, 0)
    wide = replace(
        program, steps=[step, ProgramStep(0, (weights,), ()), ProgramStep(0, (data,), step.stores)],
        buffers=[*program.buffers[:3], Buffer("tensors", "activations", 1 << 16)],
    )  # fmt: skip
    files = image_files(wide)
    assert read_image(files, PYNQ).steps == tuple(wide.steps)
    assert not is_bare(files[NETWORK])
    assert "3 steps" in why_not_bare(wide)
    for steps, why in [
        ([ProgramStep(0, (weights,), ())], "the host must pack k as weights"),
        (
            [ProgramStep(0, (data,), ())],
            "β is int64, but the runtime only supports int8, uint8 and float32",
        ),
    ]:
        assert why_not_bare(replace(wide, steps=steps)) == why
    assert why_not_bare(program, ["softmax", "resize"]) == "the host must compute softmax, resize"
    assert not is_bare(image_files(program, ["softmax"])[NETWORK])


@pytest.mark.parametrize("name", FILES)
def test_changed_cut_and_missing_files_are_refused(name: str, program: BoardProgram) -> None:
    files = image_files(program)
    for at in {0, 13, len(files[name]) // 2, len(files[name]) - 1}:
        changed = bytearray(files[name])
        changed[at] ^= 16
        with pytest.raises(BoardError, match=name):
            read_image({**files, name: bytes(changed)}, PYNQ)
        with pytest.raises(BoardError, match=name):
            read_image({**files, name: files[name][:at]}, PYNQ)
    with pytest.raises(BoardError, match=f"{name} .*build it again"):
        read_image({**files, name: files[name] + b"\0"}, PYNQ)
    with pytest.raises(BoardError, match=f"{name} is missing"):
        read_image({other: files[other] for other in FILES if other != name}, PYNQ)


def test_another_machine_or_version_is_refused(program: BoardProgram) -> None:
    files = image_files(program)
    other = VtaSpec.from_mapping({"LOG_WGT_BUFF_SIZE": 17, "name": "smaller"})
    with pytest.raises(BoardError, match="LOG_WGT_BUFF_SIZE 18, 'smaller' has 17"):
        read_image(files, other)
    later = bytearray(files[NETWORK][:-32])
    later[8] = 1
    signed = bytes(later) + hashlib.sha256(later).digest()
    with pytest.raises(BoardError, match="version 1, this program reads 2; build it again"):
        read_image({**files, NETWORK: signed}, PYNQ)


def _insn(at: int, word: int, change: Callable[[int], int]) -> Change:
    def changed(program: BoardProgram) -> BoardProgram:
        insns = program.insns.copy()
        insns[at, word] = change(int(insns[at, word]))
        return replace(program, insns=insns)

    return changed


def _relocation(at: int, field: str, value: int) -> Change:
    def changed(program: BoardProgram) -> BoardProgram:
        table = program.relocations.copy()
        table[field][at] = value
        return replace(program, relocations=table)

    return changed


def _buffer(at: int, **values: object) -> Change:
    def changed(program: BoardProgram) -> BoardProgram:
        buffers = list(program.buffers)
        buffers[at] = replace(buffers[at], **values)  # type: ignore[arg-type]
        return replace(program, buffers=buffers)

    return changed


def _port(**values: object) -> Change:
    def changed(program: BoardProgram) -> BoardProgram:
        step = program.steps[0]
        load = replace(step.loads[0], **values)  # type: ignore[arg-type]
        return replace(program, steps=[replace(step, loads=(load,))])

    return changed


def _fold(**values: int) -> Change:
    def changed(program: BoardProgram) -> BoardProgram:
        fold = program.steps[0].loads[0].unfold
        assert fold
        return _port(unfold=replace(fold, **values))(program)

    return changed


def _twice(program: BoardProgram) -> BoardProgram:
    step = program.steps[0]
    return replace(program, steps=[replace(step, loads=(*step.loads, *step.loads))])


def _two_shapes(program: BoardProgram) -> BoardProgram:
    step = program.steps[0]
    other = replace(step.loads[0], offset=1 << 15, dtype="float32")
    wide = _buffer(3, bytes=1 << 16)(program)
    return replace(wide, steps=[replace(step, loads=(step.loads[0], other))])


def _stored_twice(program: BoardProgram) -> BoardProgram:
    step = program.steps[0]
    return replace(program, steps=[replace(step, stores=step.stores * 2)])


def _without_relocation(program: BoardProgram) -> BoardProgram:
    return replace(program, relocations=program.relocations[1:])


def _backwards(program: BoardProgram) -> BoardProgram:
    return replace(program, relocations=program.relocations[::-1].copy())


DATA = Value("data", (1, 3, 15, 13))


def _inputs(*inputs: Value) -> Change:
    return lambda program: replace(program, inputs=inputs)


WRONG: dict[str, tuple[Change, str]] = {
    "no FINISH": (_insn(-1, 0, lambda low: low & ~7 | 4), "has FINISH at"),
    "two FINISH": (_insn(1, 0, lambda low: low & ~7 | 3), "FINISH at"),
    "empty stream": (lambda p: replace(p, segments=[Segment(0, 0)]), "segment 0"),
    "long stream": (lambda p: replace(p, segments=[Segment(1, len(p.insns))]), "segment 0"),
    "no stream": (lambda p: replace(p, segments=[]), "runs segment 0"),
    "no relocation": (_without_relocation, "has no relocation"),
    "backwards": (_backwards, "not sorted by instruction"),
    "beyond the stream": (_relocation(-1, "instruction", 1 << 20), "that does not exist"),
    "not a transfer": (_insn(0, 0, lambda low: low & ~7 | 4), "moves no data"),
    "memory": (_relocation(0, "memory", 1), "another memory type"),
    "no buffer": (_relocation(0, "buffer", 4), "a buffer that does not exist"),
    "kind": (_relocation(0, "buffer", 2), "of the wrong kind"),
    "offset": (_relocation(0, "offset", 1), "another offset"),
    "reach": (_insn(0, 1, lambda high: high | 0xFFFF << 16), "beyond its buffer"),
    "rows": (_insn(0, 1, lambda high: high | 0xFFFF | 0xFFFF << 32), "beyond its buffer"),
    "small buffer": (_buffer(3, bytes=4096), "beyond its buffer"),
    "no bytes": (_buffer(0, bytes=0), "0 bytes"),
    "large buffer": (_buffer(3, bytes=(1 << 25) + 1), "33554433 bytes"),
    "beyond the file": (_buffer(1, offset=1 << 40), "is filled from"),
    "negative": (_buffer(1, offset=-1), "is filled from"),
    "no file": (_buffer(3, offset=16), "not filled from a file"),
    "foreign kind": (_buffer(3, kind="heap"), "kind 'heap'"),
    "type": (_port(dtype="float16"), "type float16"),
    "form": (_port(form="blob"), "form 'blob'"),
    "no axes": (_port(shape=()), "shape"),
    "five axes": (_port(shape=(1, 3, 15, 13, 1)), "shape"),
    "empty": (_port(shape=(1, 3, 0, 13)), "shape"),
    "huge": (_port(shape=(1 << 20, 1 << 20, 1, 1)), "shape"),
    "no step": (_port(scale=Scale(0.0)), "invalid step 0.0"),
    "negative step": (_port(scale=Scale(-0.5)), "invalid step -0.5"),
    "subnormal step": (_port(scale=Scale.power_of_two(-127)), "invalid step 5.87"),
    "infinite step": (_port(scale=Scale(1e39)), r"invalid step 1e\+39"),
    "step that is not a number": (_port(scale=Scale(float("nan"))), "invalid step nan"),
    "step between two floats": (_port(scale=Scale(0.1)), "invalid step 0.1"),
    "high zero point": (_port(scale=Scale(1.0, 128)), "invalid zero point 128"),
    "low zero point": (_port(scale=Scale(1.0, -129)), "invalid zero point -129"),
    "input's type": (_inputs(replace(DATA, dtype="float32")), "'data' has two shapes"),
    "input's size": (_inputs(replace(DATA, shape=(1, 3, 15, 14))), "'data' has two shapes"),
    "two inputs": (_inputs(DATA, DATA), "two tensors have the name 'data'"),
    "zero in an input's name": (_inputs(DATA, Value("a\0b", (1,))), "zero byte"),
    "port's buffer": (_port(buffer=4), "is in no buffer"),
    "port's kind": (_port(buffer=1), "buffer of kind constants"),
    "between elements": (_port(offset=8), "does not fit"),
    "behind": (_port(offset=1 << 20), "does not fit"),
    "before": (_port(offset=-16), "does not fit"),
    "large patches": (_fold(rows=100, cols=100), "does not fit"),
    "no stride": (_fold(stride_h=0), "unfolded"),
    "negative pad": (_fold(pad_left=-1), "unfolded"),
    "overlap": (_twice, "overlap"),
    "two shapes": (_two_shapes, "'data' has two shapes"),
    "stored twice": (_stored_twice, "stored more than once: out, out"),
    "zero in a name": (_port(name="a\0b"), "zero byte"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_program_that_leaves_its_buffers_is_not_written(name: str, program: BoardProgram) -> None:
    change, said = WRONG[name]
    with pytest.raises(BoardError, match=said):
        image_files(change(program))


def test_a_transfer_of_nothing_needs_no_relocation(program: BoardProgram) -> None:
    insns = program.insns.copy()
    insns[0, 1] = int(insns[0, 1]) & ~(0xFFFF << 16)
    files = image_files(replace(program, insns=insns, relocations=program.relocations[1:]))
    assert len(read_image(files, PYNQ).relocations) == len(program.relocations) - 1


def test_the_files_are_those_that_the_tables_know(program: BoardProgram) -> None:
    files = image_files(program)
    assert len(files[INSTRUCTIONS]) == 16 * len(program.insns)
    assert files[CONSTANTS] == program.constants.tobytes()
    assert files[NETWORK][-32:] == hashlib.sha256(files[NETWORK][:-32]).digest()
