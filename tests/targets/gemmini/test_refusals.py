"""Checks that invalid streams and machines are refused with the cause and a next step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.errors import SpecError, TilewrightError, UnknownName
from tilewright.targets import gemmini
from tilewright.targets.gemmini import isa
from tilewright.targets.gemmini.faults import (
    AcceleratorHang,
    ImpossibleSize,
    MemoryOutOfRange,
    ProtocolError,
    StreamError,
    UndecodableCommand,
)
from tilewright.targets.gemmini.spec import DEFAULT_PRESET, GemminiSpec

BASE, SIZE = 0x80000000, 1 << 16
Command = tuple[int, int, int]
CONFIG_LD: Command = (isa.CONFIG, 1 | 16 << 16 | isa.SCALE_ONE << 32, 16)
CONFIG_EX: Command = (isa.CONFIG, 4 | 1 << 16 | isa.SCALE_ONE << 32, 1 << 48)
CONFIG_ST: Command = (isa.CONFIG, 2, 16 | isa.SCALE_ONE << 32)
ACCUMULATOR = 1 << 31


def operand(address: int, rows: int = 16, columns: int = 16) -> int:
    return address | columns << 32 | rows << 48


def run(*commands: Command) -> bytes:
    return gemmini.execute(*zip(*commands, strict=True), bytes(SIZE), BASE)


REFUSED: dict[str, tuple[type[StreamError], int, list[Command]]] = {
    "unknown function": (UndecodableCommand, 0, [(99, 0, 0)]),
    "unit that does not exist": (UndecodableCommand, 0, [(isa.CONFIG, 3, 0)]),
    "fourth load state": (UndecodableCommand, 0, [(isa.CONFIG, 1 | 3 << 3, 0)]),
    "unconfigured load": (ProtocolError, 0, [(isa.MVIN, BASE, operand(0))]),
    "no rows": (ImpossibleSize, 1, [CONFIG_LD, (isa.MVIN, BASE, operand(0, rows=0))]),
    "17 rows": (ImpossibleSize, 1, [CONFIG_LD, (isa.MVIN, BASE, operand(0, rows=17))]),
    "32 columns of int32": (
        ImpossibleSize, 1, [CONFIG_LD, (isa.MVIN, BASE, operand(ACCUMULATOR, columns=32))]
    ),
    "beyond the image": (
        MemoryOutOfRange, 1, [CONFIG_LD, (isa.MVIN, BASE + SIZE - 8, operand(0))]
    ),
    "before the image": (MemoryOutOfRange, 1, [CONFIG_ST, (isa.MVOUT, 64, operand(0))]),
    "load to nowhere": (
        UndecodableCommand, 1, [CONFIG_LD, (isa.MVIN, BASE, operand(isa.GARBAGE))]
    ),
    "compute first": (
        ProtocolError, 1, [CONFIG_EX, (isa.COMPUTE_PRELOADED, operand(0), operand(isa.GARBAGE))]
    ),
    "endless loop": (ProtocolError, 0, [(isa.LOOP_WS, 0, 0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_stream_is_refused_with_its_command(name: str) -> None:
    kind, index, commands = REFUSED[name]
    with pytest.raises(kind) as refusal:
        run(*commands)
    assert refusal.value.fault.command == index
    text = str(refusal.value)
    assert text.startswith(f"command {index} ")
    assert "; " in text


def test_commands_that_wait_for_each_other_are_refused() -> None:
    commands = [
        CONFIG_LD, CONFIG_EX,
        (isa.PRELOAD, operand(0), operand(ACCUMULATOR)),
        (isa.MVIN, BASE, operand(0)),
        (isa.COMPUTE_PRELOADED, operand(0), operand(isa.GARBAGE)),
    ]  # fmt: skip
    with pytest.raises(AcceleratorHang, match=r"command 2 .*waits forever"):
        gemmini.cycles(*zip(*commands, strict=True))


@pytest.mark.parametrize(
    "commands",
    [([0, 1], [0], [0]), ([-1], [0], [0]), ([256], [0], [0]), (["x"], [0], [0]), ([1.5], [0], [0])],
)
def test_what_is_no_stream_is_refused(commands: tuple[list[int], ...]) -> None:
    for function in (gemmini.cycles, _execute):
        with pytest.raises(TilewrightError, match="pass"):
            function(*commands)


def _execute(*commands: list[int]) -> bytes:
    return gemmini.execute(*commands, b"", BASE)


WORDS = st.integers(0, (1 << 64) - 1)
PLAUSIBLE = st.one_of(WORDS, st.builds(operand, WORDS.map(lambda w: w & 0xFFFFFFFF)))
ADDRESSES = st.one_of(PLAUSIBLE, st.integers(BASE, BASE + SIZE))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([*isa.COMMAND_NAMES, 15, 126]), ADDRESSES, PLAUSIBLE), max_size=12
    )
)
def test_any_stream_runs_or_is_refused_in_the_same_way_twice(commands: list[Command]) -> None:
    plain = [
        command for command in commands if not isa.LOOP_WS <= command[0] <= isa.LOOP_STRIDES_DC
    ]
    columns = [list(item) for item in zip(*plain, strict=True)] or [[], [], []]
    assert _outcome(_execute_image, columns) == _outcome(_execute_image, columns)


def _execute_image(*columns: list[int]) -> bytes:
    return gemmini.execute(*columns, bytes(SIZE), BASE)


def _outcome(function: Callable[..., bytes], columns: list[list[int]]) -> bytes | str:
    try:
        return function(*columns)
    except TilewrightError as error:
        return str(error)


def test_an_empty_stream_does_nothing() -> None:
    image = bytes(range(256))
    assert gemmini.execute([], [], [], image, BASE) == image
    assert gemmini.cycles([], [], [])[0] == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dim": 8}, "dim = 8 .* only compared with the RTL for 16"),
        ({"bus_bytes": 8}, "bus_bytes = 8"),
        ({"scratchpad_rows": 1000}, "scratchpad_rows = 1000 must be a power of two"),
        ({"accumulator_banks": 3}, "accumulator_banks"),
        ({"load_queue": 0}, "load_queue"),
        ({"memory_latency_cycles": "soon"}, "memory_latency_cycles"),
        ({"scratchpad_row": 1024}, "did you mean scratchpad_rows"),
        ({"latncy": 40}, "did you mean latency"),
    ],
)
def test_a_machine_that_makes_no_sense_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        GemminiSpec.from_mapping(values)


def test_the_preset_is_the_default_machine(tmp_path: Path) -> None:
    preset = GemminiSpec.load(DEFAULT_PRESET)
    assert preset.fingerprint == GemminiSpec().fingerprint
    copy = tmp_path / "mine.json"
    copy.write_text(json.dumps(preset.model_dump(exclude={"name"})))
    assert GemminiSpec.load(str(copy)).fingerprint == preset.fingerprint
    with pytest.raises(UnknownName):
        GemminiSpec.load("gemini")
    with pytest.raises(SpecError, match="cannot read"):
        GemminiSpec.load(str(tmp_path / "missing.json"))


def test_memory_that_is_further_away_takes_longer() -> None:
    commands = [CONFIG_LD, (isa.MVIN, BASE, operand(0))]
    columns = [list(item) for item in zip(*commands, strict=True)]
    near, far = (
        gemmini.cycles(*columns, {"memory_latency_cycles": latency})[0] for latency in (20, 60)
    )
    assert far - near == 40
    assert np.array_equal(
        gemmini.cycles(*columns)[1]["accept"],
        gemmini.cycles(*columns, {"latency": 60})[1]["accept"],
    )
