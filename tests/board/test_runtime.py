"""Checks that the C runtime computes what the integer reference computes, at any memory address."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.board.boards import PAIRED, PYNQ, run, write_artifact
from tests.board.programs import Made, one_layer, with_ports, with_steps
from tilewright.targets.layer import Scale
from tilewright.targets.vta.board.program import Buffer, Port, ProgramStep

LAYERS = {
    "plain": ("conv2d:c=32,h=8,w=8,o=32,k=3,p=1", PYNQ, None),
    "ragged": ("conv2d:c=20,h=5,w=7,o=35,k=3x1,p=1x0", PYNQ, None),
    "stem": ("conv2d:c=3,h=15,w=13,o=16,k=7,s=2,p=3", PYNQ, (2, 2)),
    "patches": ("conv2d:c=3,h=16,w=16,o=24,k=4,s=4", PYNQ, (4, 4)),
    "columns": ("conv2d:c=3,h=9,w=9,o=16,k=3,p=1", PYNQ, (1, 3)),
    "dense": ("dense:n=1,c=40,o=24", PYNQ, None),
    "column": ("dense:n=7,c=40,o=24", PYNQ, None),
    "paired images": ("conv2d:n=3,c=12,h=6,w=6,o=20,k=3,p=1", PAIRED, None),
    "paired column": ("dense:n=7,c=20,o=12", PAIRED, None),
}


@pytest.fixture(scope="module")
def stem() -> Made:
    """Return a one-layer program whose input is unfolded."""
    return one_layer(*LAYERS["stem"][:2], unfold=(2, 2))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.slow(seconds=0.5)
def test_the_runtime_computes_what_the_reference_does(
    name: str, tmp_path: Path, sanitized: Path, paired: Path
) -> None:
    text, spec, unfold = LAYERS[name]
    made = one_layer(text, spec, unfold=unfold)
    artifact = write_artifact(tmp_path / "art", made.program)
    runtime = paired if spec == PAIRED else sanitized
    done = run(runtime, artifact, made.data.tobytes(), spec)
    assert (done.code, done.said) == (0, "")
    assert done.output == made.expected.tobytes()
    assert [(count, patience) for _, count, patience in done.streams] == [
        (len(made.program.insns), 1 << 31)
    ]


@pytest.mark.parametrize(("base", "gap"), [(1 << 31 | 0x1000, 3), (0x7FFF000, 77), (0xF0000000, 1)])
def test_addresses_do_not_matter(
    base: int, gap: int, stem: Made, tmp_path: Path, sanitized: Path
) -> None:
    artifact = write_artifact(tmp_path / "art", stem.program)
    done = run(sanitized, artifact, stem.data.tobytes(), PYNQ, base=base, shim={"GAP": gap})
    assert (done.code, done.said, done.output) == (0, "", stem.expected.tobytes())
    assert done.streams[0][0] > base


def test_a_driver_with_64_bit_addresses_runs_artifacts(
    stem: Made, tmp_path: Path, plain: Path
) -> None:
    artifact = write_artifact(tmp_path / "art", stem.program)
    done = run(plain, artifact, stem.data.tobytes(), PYNQ, base=1 << 31)
    assert (done.code, done.said, done.output) == (0, "", stem.expected.tobytes())
    done = run(plain, artifact, stem.data.tobytes(), PYNQ, base=1 << 32 | 0x1000)
    assert (done.code, done.output, done.streams) == (1, None, [])
    assert "0x100001000, where VTA's 32-bit addresses do not reach" in done.said


@pytest.mark.parametrize(("exponent", "out_exponent"), [(-4, -3), (3, 0), (-126, 120), (120, -126)])
def test_floats_are_rounded_halves_to_even(
    exponent: int, out_exponent: int, tmp_path: Path, sanitized: Path
) -> None:
    made = one_layer("dense:n=1,c=600,o=40", PYNQ)
    scales = Scale.power_of_two(exponent), Scale.power_of_two(out_exponent)
    steps = np.concatenate([
        np.arange(-130, 130, 0.5), [np.inf, -np.inf, 1e9, -1e9, 127.49, -128.51],
        np.random.default_rng(1).normal(0, 60, 74),
    ])  # fmt: skip
    with np.errstate(over="ignore", under="ignore"):
        values = (steps * 2.0**exponent).astype("<f4")
    wanted = np.clip(np.rint(values.astype(np.float64) * 2.0**-exponent), -128, 127)
    floats = write_artifact(tmp_path / "float", with_ports(made, *scales))
    integers = write_artifact(tmp_path / "int8", made.program)
    done = run(sanitized, floats, values.tobytes(), PYNQ)
    same = run(sanitized, integers, wanted.astype(np.int8).tobytes(), PYNQ)
    assert (done.code, done.said, same.code) == (0, "", 0)
    assert done.output is not None
    assert same.output is not None
    real = np.frombuffer(same.output, np.int8).astype(np.float64) * 2.0**out_exponent
    assert len(set(real.tolist())) > 5
    assert done.output == real.astype("<f4").tobytes()


def test_not_a_number_is_refused(tmp_path: Path, sanitized: Path) -> None:
    made = one_layer(*LAYERS["dense"][:2])
    artifact = write_artifact(tmp_path / "art", with_ports(made, Scale(1.0), Scale(1.0)))
    values = np.zeros(40, np.float32)
    values[7] = np.nan
    done = run(sanitized, artifact, values.tobytes(), PYNQ)
    assert (done.code, done.output, done.streams) == (2, None, [])
    assert done.said == "tilewright_run: element 7 of input 'data' is not a number\n"


def test_one_input_may_be_read_in_two_forms(tmp_path: Path, sanitized: Path) -> None:
    made = one_layer(*LAYERS["stem"][:2], unfold=(2, 2))
    program, step = made.program, made.program.steps[0]
    plain = replace(step.loads[0], unfold=None, buffer=len(program.buffers), offset=0)
    other = Port("other", (2, 3), "int8", Scale(1.0), "column", len(program.buffers) + 1, 0)
    program = replace(
        program,
        buffers=[*program.buffers, Buffer("image", "activations", 16 * 15 * 13),
                 Buffer("other", "activations", 64)],
    )  # fmt: skip
    program = with_steps(program, ProgramStep(0, (other, step.loads[0], plain), step.stores))
    artifact = write_artifact(tmp_path / "art", program)
    done = run(sanitized, artifact, bytes(6) + made.data.tobytes(), PYNQ)
    assert (done.code, done.said, done.output) == (0, "", made.expected.tobytes())


@pytest.mark.parametrize("change", [-1, 1, -(10**9)])
def test_inputs_of_another_size_are_refused(
    change: int, stem: Made, tmp_path: Path, sanitized: Path
) -> None:
    artifact = write_artifact(tmp_path / "art", stem.program)
    size = max(0, stem.data.size + change)
    done = run(sanitized, artifact, bytes(size), PYNQ)
    assert (done.code, done.output, done.streams) == (2, None, [])
    assert f"{'more' if change > 0 else 'fewer'} bytes than the {stem.data.size} of" in done.said


@pytest.mark.parametrize("nothing", [0, (1 << 64) - 1])
def test_no_memory_is_an_error_without_a_leak(
    nothing: int, stem: Made, tmp_path: Path, sanitized: Path
) -> None:
    artifact = write_artifact(tmp_path / "art", stem.program)
    for at in range(1, len(stem.program.buffers) + 2):
        done = run(sanitized, artifact, stem.data.tobytes(), PYNQ,
                   shim={"FAIL_AT": at, "FAIL_WITH": nothing})  # fmt: skip
        assert (done.code, done.output, done.streams) == (1, None, [])
        assert done.said.startswith("tilewright_run: the driver gave no memory for ")
        assert done.said.count("\n") == 1
    done = run(sanitized, artifact, stem.data.tobytes(), PYNQ, shim={"FAIL_AT": at + 1})
    assert done.code == 0


@pytest.mark.parametrize(
    ("shim", "said"),
    [
        ({"NO_DEVICE": 1}, "the driver gave no device; is the FPGA programmed"),
        ({"TIME_OUT": 1}, "the device did not finish (the driver's code is 1)"),
        ({"BASE": 0}, "the driver put uops at 0x0, where"),
        ({"BASE": 4096 + 8}, "which is no multiple of"),
        ({"BASE": 0xFFFFF000}, "the driver put weights at 0x0, where"),
    ],
)
def test_a_failing_driver_is_one_sentence(
    shim: dict[str, object], said: str, stem: Made, tmp_path: Path, sanitized: Path
) -> None:
    artifact = write_artifact(tmp_path / "art", stem.program)
    done = run(sanitized, artifact, stem.data.tobytes(), PYNQ, shim=shim)
    assert (done.code, done.output, done.streams) == (1, None, [])
    assert said in done.said
    assert done.said.count("\n") == 1
