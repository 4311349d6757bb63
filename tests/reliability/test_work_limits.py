"""Checks that a short program cannot keep a simulator busy for hours or overflow its counters."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Place
from tilewright.targets.vta.instruction_format import (
    FINISH,
    GEMM,
    LOAD,
    STORE,
    WGT,
    encode,
    layout_of,
)
from tilewright.targets.vta.program import words_of
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing import CycleLimitExceeded, TooManyCycles, simulate_program

pytestmark = pytest.mark.attack

SPEC = VtaSpec.load("vta-pynq")
LARGEST = {"y_size": 65535, "x_size": 65535, "x_stride": 65535}
OPTIONS = ("--insns", "p.insns", "--spec", "vta-pynq")


def stream(*insns: dict[str, int]) -> bytes:
    layout = layout_of(SPEC)
    return b"".join(encode(values, layout).to_bytes(16, "little") for values in insns)


def loads(count: int) -> bytes:
    """Return a stream of the largest possible loads."""
    loads = {"opcode": LOAD, "memory_type": WGT, **LARGEST}
    return stream(*[{**loads, "dram_base": place} for place in range(count)], {"opcode": FINISH})


def written(place: Place, insns: bytes) -> Place:
    (place.folder / "p.insns").write_bytes(insns)
    return place


def test_work_is_refused_before_it_begins(place: Place) -> None:
    written(place, loads(200))
    done = place.run("vta", "cycles", *OPTIONS)
    assert done.returncode == 2
    (message,) = done.stderr.splitlines()
    assert message.startswith("error: instruction 1 brings the program to more than the limit")
    assert "--limit" in message


def test_the_largest_stores_are_counted_in_full(place: Place) -> None:
    """The program transfers more than 2^32 beats."""
    store = {"opcode": STORE, "memory_type": 4, **LARGEST}
    written(place, stream(*[store] * 200, {"opcode": FINISH, "pop_next": 0}))
    done = place.run("vta", "cycles", *OPTIONS, "--json")
    assert done.returncode == 0, done.stderr
    each = 65535 * (65535 * 16 // 8)  # 65,535 rows, each of this many beats
    assert json.loads(done.stdout)["write_beats"] == 200 * each


@pytest.mark.nightly(seconds=9)
def test_ctrl_c_ends_a_simulation_at_once(place: Place) -> None:
    written(place, loads(200))
    command = place.start("vta", "cycles", *OPTIONS, "--limit", str(1 << 60))
    try:
        time.sleep(8)  # by then it simulates; an earlier Ctrl-C ends it in the same way
        command.send_signal(signal.SIGINT)
        printed, _ = command.communicate(timeout=60)
    finally:
        command.kill()
    assert command.returncode == 130
    assert printed.startswith("error: stopped; start the same command again")
    assert len(printed.splitlines()) == 1


def test_what_the_counters_do_not_hold_is_refused() -> None:
    endless = {"opcode": GEMM, "uop_end": 0, "iter_out": 0, "iter_in": 0}
    words = words_of(stream(endless, {"opcode": FINISH}))
    many = np.concatenate([np.repeat(words[:1], 1 << 19, axis=0), words[1:]])
    with pytest.raises(TooManyCycles):
        simulate_program(many, SPEC)


def test_a_limit_is_the_callers() -> None:
    words = words_of(stream({"opcode": STORE, "memory_type": 4, **LARGEST}, {"opcode": FINISH}))
    assert simulate_program(words, SPEC, work_limit=1 << 17).write_bursts > 1 << 24
    with pytest.raises(CycleLimitExceeded) as caught:
        simulate_program(words, SPEC, work_limit=1 << 15)
    assert caught.value.instruction == 0


@pytest.mark.slow(seconds=3)
def test_a_device_that_never_ends_is_no_stream(place: Place) -> None:
    done = place.run("vta", "cycles", "--insns", "/dev/zero", "--spec", "vta-pynq")
    assert done.returncode == 2
    assert "more than" in done.stderr
    assert not Path(place.folder / "core").exists()
