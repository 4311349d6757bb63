"""Checks that layers linked into one instruction stream compute the same as separate layers.

The streams must also be free of data races, whatever the schedules of the layers.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.board.graphs import (
    EXAMPLES,
    Example,
    graph,
    layer,
    negated,
    skip,
    small_cnn,
    some_pick,
    values,
)
from tilewright.core.errors import WorkloadError
from tilewright.targets.artifact_types import HostStep, Pick
from tilewright.targets.vta.board import memory_plan as memory
from tilewright.targets.vta.board.artifact_builder import VtaProgram, build
from tilewright.targets.vta.board.program import Segment
from tilewright.targets.vta.instruction_format import (
    FINISH,
    INP,
    LOAD,
    MODULE_COMPUTE,
    POP_NEXT,
    PUSH_PREV,
    no_op,
)
from tilewright.targets.vta.lint import lint
from tilewright.targets.vta.program import FIRST_ADDRESS, Program

SEEDS = range(4)


def opened(example: Example, picks: list[Pick]) -> VtaProgram:
    """Build the example and open it as a program."""
    made = build(example.graph, picks, example.spec)
    return VtaProgram.open(made.files, made.layers, example.spec)


def outcome(
    example: Example, program: VtaProgram, seed: int
) -> tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.int8]]]:
    """Run the program. Return its outputs and the expected outputs."""
    inputs = example.drawn(seed)
    tensors: dict[str, NDArray[np.generic]] = dict(inputs)
    expected = example.expected(inputs)
    hosts = [step for step in example.graph.steps if isinstance(step, HostStep)]
    for number in range(len(program.program.segments)):
        for host in hosts:
            if all(name in tensors for name in host.reads):
                tensors[host.writes[0]] = negated(tensors[host.reads[0]].astype(np.int8))
        wanted = {port.name: tensors[port.name] for port in program.program.steps[number].loads}
        tensors |= program.run(number, wanted)
    return tensors, expected


def streams(program: VtaProgram) -> list[NDArray[np.uint64]]:
    """Return the instructions of each segment, with absolute addresses."""
    return [
        program.device.insns[segment.first : segment.first + segment.count]
        for segment in program.program.segments
    ]


def findings(program: VtaProgram, insns: NDArray[np.uint64]) -> set[str]:
    """Return the names of the lint findings for a stream in the program's memory, without notes."""
    image = np.zeros(program.device.bytes, np.uint8)
    for at, buffer in enumerate(program.program.buffers):
        address = int(program.device.addresses[at]) - FIRST_ADDRESS
        image[address : address + buffer.bytes] = program.device.memory(at, 0, buffer.bytes)
    result = lint(Program(insns, image, FIRST_ADDRESS), program.program.spec)
    return {item.name for item in result if item.severity != "note"}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_network_computes_what_its_layers_do(name: str, seed: int) -> None:
    example = EXAMPLES[name]()
    program = opened(example, example.random_picks(seed))
    tensors, expected = outcome(example, program, seed)
    for output in example.graph.outputs:
        got = tensors[output].reshape(expected[output].shape)
        assert np.array_equal(got, expected[output])
    # A second inference checks that the first one left nothing harmful in memory.
    tensors, expected = outcome(example, program, seed + 100)
    for output in example.graph.outputs:
        assert np.array_equal(tensors[output].reshape(expected[output].shape), expected[output])


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_load_overtakes_its_store(name: str, seed: int) -> None:
    example = EXAMPLES[name]()
    program = opened(example, example.random_picks(seed))
    for insns in streams(program):
        assert findings(program, insns) == set()


def barriers(insns: NDArray[np.uint64]) -> list[int]:
    """Return the positions of no-ops that make activation loads wait for a store."""
    whole = int(no_op(MODULE_COMPUTE, POP_NEXT | PUSH_PREV)[0, 0])
    return [n for n, (low, high) in enumerate(insns.tolist()) if (low, high) == (whole, 0)]


@pytest.mark.parametrize("name", ["cnn", "skip"])
def test_a_barrier_that_does_not_wait_is_found(name: str) -> None:
    """A removed barrier is detected if the loads after it read what the last stores write.

    Otherwise the results stay correct, although the simulator runs loads as early as tokens allow.
    """
    example = EXAMPLES[name]()
    races = []
    for seed in SEEDS:
        program = opened(example, example.random_picks(seed))
        (insns,) = streams(program)
        result = barriers(insns)
        assert len(result) == len(example.graph.layers) - 1
        for at in result:
            # Change the order: push the token first, and wait for the store only afterwards.
            broken = insns.copy()
            broken[at, 0] &= ~np.uint64(PUSH_PREV)
            broken = np.insert(broken, at, no_op(MODULE_COMPUTE, PUSH_PREV)[0], axis=0)
            races.append("memory_race" in findings(program, broken))
            program.device.insns = broken
            segments = (Segment(0, len(broken)),)
            object.__setattr__(program.program, "segments", segments)
            tensors, expected = outcome(example, program, seed)
            right = np.array_equal(tensors["y"].reshape(expected["y"].shape), expected["y"])
            assert right or races[-1]
            program = opened(example, example.random_picks(seed))
    assert races.count(True) >= 3


def test_a_load_without_its_token_is_found() -> None:
    example = skip()
    program = opened(example, example.random_picks(2))
    (insns,) = streams(program)
    at = barriers(insns)[0]
    low = insns[:, 0]
    loads = (low & np.uint64(7) == LOAD) & (low >> np.uint64(7) & np.uint64(7) == INP)
    first = int(np.flatnonzero(loads & (np.arange(len(insns)) > at))[0])
    assert int(low[first]) & POP_NEXT
    broken = insns.copy()
    broken[first, 0] &= ~np.uint64(POP_NEXT)
    assert {"memory_race", "leftover_tokens"} <= findings(program, broken)


def test_streams_leave_no_tokens_and_end_once() -> None:
    example = small_cnn()
    program = opened(example, example.random_picks(0))
    (insns,) = streams(program)
    assert program.device.execute(insns) == (0, 0, 0, 0)
    finishes = np.flatnonzero(insns[:, 0] & np.uint64(7) == FINISH)
    assert finishes.tolist() == [len(insns) - 1]


def test_programs_of_the_stock_template_are_linked_as_well() -> None:
    example = skip()
    picks = [
        some_pick(layer.workload, 5, example.spec, "extended" if layer.residual else "template")
        for layer in example.graph.layers
    ]
    assert {pick.space for pick in picks} == {"extended", "template"}
    program = opened(example, picks)
    tensors, expected = outcome(example, program, 0)
    assert np.array_equal(tensors["y"], expected["y"])
    (insns,) = streams(program)
    assert program.device.execute(insns) == (0, 0, 0, 0)
    assert "memory_race" not in findings(program, insns)


def test_weights_beyond_a_buffer_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    example = small_cnn()
    monkeypatch.setattr(memory, "MAX_BUFFER_BYTES", 4864)  # room for 19 weight elements
    for seed in SEEDS:
        program = opened(example, example.random_picks(seed))
        constants = [b for b in program.program.buffers if b.kind == "constants"]
        assert len(constants) > 2
        assert max(buffer.bytes for buffer in program.program.buffers) <= 4864
        tensors, expected = outcome(example, program, seed)
        assert np.array_equal(tensors["y"].reshape(1, 10), expected["y"])
        for insns in streams(program):
            assert findings(program, insns) == set()


def test_a_tensor_beyond_a_buffer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    example = skip()
    picks = example.random_picks(0)
    monkeypatch.setattr(memory, "MAX_BUFFER_BYTES", 2560)
    with pytest.raises(
        WorkloadError, match="the tensor y takes 3,888 bytes, but the driver allocates"
    ):
        build(example.graph, picks, example.spec)


def test_a_stream_takes_less_time_than_its_layers() -> None:
    for make in (small_cnn, skip):
        example = make()
        made = build(example.graph, example.random_picks(3), example.spec)
        alone = sum(int(str(row["cycles"])) for row in made.layers)
        assert made.stream_cycles < alone
        assert sum(int(str(row["stream_cycles"])) for row in made.layers) == made.stream_cycles


def test_every_layer_equals_the_integer_reference() -> None:
    for name, make in EXAMPLES.items():
        example = make()
        program = opened(example, example.random_picks(1))
        checks = list(program.verify(seed=3))
        assert [check.wrong for check in checks] == [0] * len(example.graph.layers), name
        assert min(check.values for check in checks) >= 10


def test_a_changed_instruction_shows_in_its_layer() -> None:
    example = skip()
    made = build(example.graph, example.random_picks(1), example.spec)
    program = VtaProgram.open(made.files, made.layers, example.spec)
    first, count = program.layers[1].first, program.layers[1].count
    insns = program.program.insns.copy()
    shifts = (insns[:, 0] & np.uint64(7) == 4) & (insns[:, 1] >> np.uint64(44) & np.uint64(7) == 3)
    inside = [n for n in np.flatnonzero(shifts).tolist() if first <= n < first + count]
    insns[inside[0], 1] ^= np.uint64(1 << 48)  # the lowest bit of the shift amount
    object.__setattr__(program.program, "insns", insns)
    wrong = [check.wrong for check in program.verify()]
    assert wrong[1] > 0
    assert wrong[0] == 0


def test_outputs_lie_in_place_where_that_is_legal() -> None:
    """A pointwise layer may overwrite the residual that it adds, because it works tile by tile.

    A layer that reads its input again must not overwrite it.
    """
    steps = [
        layer("one", "x", "a", "conv2d:c=16,h=8,w=8,o=16,k=1"),
        layer("two", "a", "b", "conv2d:c=16,h=8,w=8,o=16,k=3,p=1"),
        layer("three", "b", "y", "conv2d:c=16,h=8,w=8,o=16,k=1"),
    ]
    shapes = values(x=(1, 16, 8, 8), a=(1, 16, 8, 8), b=(1, 16, 8, 8), y=(1, 16, 8, 8))
    example = Example(graph(steps, shapes, "y"))
    kept = set()
    for seed in range(8):
        made = build(example.graph, example.random_picks(seed), example.spec)
        at = {row["name"]: row["offset"] for row in made.memory["tensors"]}  # type: ignore[index,union-attr,call-overload]
        # The next tile of a 3×3 layer reads some rows again, unless there is only one tile.
        kept.add((at["a"] == at["x"], at["b"] == at["a"], at["y"] == at["b"]))
        program = VtaProgram.open(made.files, made.layers, example.spec)
        tensors, expected = outcome(example, program, seed)
        assert np.array_equal(tensors["y"], expected["y"])
        for insns in streams(program):
            assert findings(program, insns) == set()
    assert any(first for first, _, _ in kept)
    assert not all(second for _, second, _ in kept)
