"""Compares streams simulated with jumps over what repeats with the same streams stepped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from benchmarks.gemmini import RecordedPart, read_index
from tilewright.targets import make_target
from tilewright.targets.gemmini.isa import (
    COMPUTE_ACCUMULATED,
    COMPUTE_PRELOADED,
    CONFIG,
    GARBAGE,
    MVIN,
    MVOUT,
    PRELOAD,
    SCALE_ONE,
)
from tilewright.targets.gemmini.lowering.batch import COMMANDS, stream_from
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.stream import CommandStream, stream_of
from tilewright.targets.gemmini.timing import time_stream
from tilewright.targets.workload import parse_workload

DATA = Path(__file__).parents[2] / "data" / "gemmini"
INDEX = read_index(DATA)
EPILOGUE = "bias, >> even 8, min 127, max 0"
STRIDE = 1024
IN_ACCUMULATOR = 1 << 31


def difference(stream: CommandStream, spec: GemminiSpec) -> list[str]:
    """What jumps change: it should be nothing."""
    stepped, jumped = time_stream(stream, spec, jumps=False), time_stream(stream, spec, jumps=True)
    found = [] if stepped.total == jumped.total else [f"{stepped.total} {jumped.total}"]
    return found + [
        name for name, times in stepped.events.items() if (times != jumped.events[name]).any()
    ]


def block(address: int, columns: int = 16) -> int:
    return address | columns << 32 | 16 << 48


Step = tuple[int, int, int]


def nest(body: list[Step], times: int, starts: list[int]) -> CommandStream:
    """Moves and products whose addresses move on in each turn by steps of their own."""
    commands = [(CONFIG, 1 << 2 | 1 << 16, 1 << 48), (CONFIG, 2, STRIDE)]
    commands += [
        (CONFIG, 1 | state << 3 | 1 << 8 | 16 << 16 | SCALE_ONE << 32, STRIDE) for state in range(3)
    ]
    for turn in range(times):
        for (kind, local, memory), start in zip(body, starts, strict=True):
            row = start + turn * local * 16
            far = (1 << 20) + start * 4096 + turn * memory * 64
            if kind == 0:
                commands.append((MVIN, far, block(row % 16384, 64 if local % 4 == 0 else 16)))
            elif kind == 1:
                commands.append((MVOUT, far, block(IN_ACCUMULATOR | row % 1024)))
            else:
                weights = GARBAGE if kind == 2 else row % 16384
                result = IN_ACCUMULATOR | 1 << 30 | start * 16 % 1024
                commands.append((PRELOAD, block(weights), block(result)))
                funct = COMPUTE_ACCUMULATED if kind == 2 else COMPUTE_PRELOADED
                commands.append((funct, block((row + 4096) % 16384), block(GARBAGE)))
    columns = np.array(commands, object).T
    return stream_of(*(list(map(int, column)) for column in columns))


@pytest.mark.slow(seconds=30)
@settings(deadline=None, max_examples=150)
@given(
    some.lists(
        some.tuples(some.integers(0, 3), some.sampled_from([0, 0, 1, 4]), some.integers(-1, 64)),
        min_size=1, max_size=8,
    ),
    some.integers(10, 120),
    some.sampled_from([(1, 1), (20, 1), (60, 1), (100, 2), (33, 3)]),
    some.randoms(use_true_random=False),
)  # fmt: skip
def test_nests_with_any_steps_take_the_same_cycles(
    body: list[Step], times: int, memory: tuple[int, int], random: object
) -> None:
    starts = [random.randrange(0, 900) * 16 for _ in body]  # type: ignore[attr-defined]
    spec = GemminiSpec(memory_latency_cycles=memory[0], cycles_per_beat=memory[1])
    # A PRELOAD of old weights needs weights.
    stream = nest([(3, 0, 0), *body], times, [0, *starts])
    assert difference(stream, spec) == []


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("name", ["random", "kernels", "loop_ws", "pairs"])
def test_recorded_streams_take_the_same_cycles(name: str) -> None:
    part = RecordedPart(DATA, INDEX, name)
    for recorded in part:
        assert difference(recorded.commands, part.specs()[0]) == [], recorded.meta["id"]


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize(
    "text",
    [
        "dense:n=64,c=1024,o=64",
        "dense:n=256,c=128,o=64",
        "conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1",
    ],
)
def test_schedules_take_the_same_cycles(text: str) -> None:
    target, workload = (
        make_target("gemmini"),
        parse_workload(text, "bias, >> even 8, min 127, max 0"),
    )
    knobs, rng = target.space(workload).knobs, np.random.default_rng(0)
    configs = np.stack([rng.integers(0, len(knob.values), 24) for knob in knobs], 1)
    lowered = target.lower(workload, configs.astype(np.int32))
    for row in np.flatnonzero(lowered.ok).tolist():
        stream = stream_from(lowered.programs[COMMANDS][row])
        for latency, beat in ((20, 1), (100, 2)):
            spec = GemminiSpec(memory_latency_cycles=latency, cycles_per_beat=beat)
            assert difference(stream, spec) == [], row
