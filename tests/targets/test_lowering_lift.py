"""Tests biases that replace the reset of an accumulator: exact, and one cycle cheaper."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.schedule_spaces.vta_programs import program_with_data
from tilewright.core.errors import WorkloadError
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.functional.semantics import SemanticsName
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.bias_lifting import SUMS
from tilewright.targets.vta.lowering.tensor_packing import (
    Tensors,
    packed_vectors,
    random_tensors,
    reference,
    unpack_output,
    unpacked_vectors,
)
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import parse_workload

PYNQ = VtaSpec.load("vta-pynq")
LAYER = "conv2d:n=1,c=48,h=9,w=11,o=40,k=3,s=1,p=1"


def _lowering(epilogue: str, spec: VtaSpec = PYNQ, text: str = LAYER) -> Lowering:
    return Lowering.for_workload(parse_workload(text, epilogue), spec, "extended")


def _values(lowering: Lowering, seed: int = 0) -> np.ndarray:
    """Return knob values (n, knobs) of random configs that lower."""
    flat = np.random.default_rng(seed).integers(0, lowering.space.size, 32)
    values = lowering.space.values(lowering.space.unravel(flat))
    codes, _ = lowering.counts(values)
    return values[codes == 0]


def _wrong(
    lowering: Lowering, values: np.ndarray, tensors: Tensors, semantics: SemanticsName
) -> int:
    """Return the number of output values that differ from the reference."""
    program = program_with_data(lowering, values, tensors)
    assert program is not None
    after = simulate(program, lowering.spec, semantics).dram
    got = unpack_output(lowering.workload, lowering.machine, lowering.geometry, after)
    return int((got != reference(lowering.workload, lowering.machine, tensors)).sum())


@pytest.mark.parametrize("semantics", ["functional", "chisel"])
@pytest.mark.parametrize(
    "epilogue",
    ["bias, >> 5, min 127, max 0", "bias, >> 8, min 127, max -128", "bias, >> 12, max 3, min 96",
     "bias, residual 7, + 128, >> 8, min 127, max -128", "bias, >> 16, min 0, max -5",
     "bias, >> channel 5, min 127, max -128", "bias, residual 3, >> channel 9, min 90, max 0",
     "bias, >> channel 12, min 127, max 0", "bias, >> channel 20, min 127, max 0"],
)  # fmt: skip
def test_every_bias_that_is_taken_is_exact(epilogue: str, semantics: SemanticsName) -> None:
    """The biases include the smallest and the largest allowed value."""
    lowering = _lowering(epilogue)
    geo = lowering.geometry
    assert geo.bias_lift > 0
    assert geo.bias_lowest <= -(1 << 19)
    tensors = random_tensors(lowering.workload, lowering.machine, 3)
    few = np.array([geo.bias_lowest, geo.bias_lowest + 1, -(1 << 19), 0, 1 << 19, SUMS - 1])
    tensors["bias"][::2] = np.resize(few, 20)
    rows = _values(lowering)[:4]
    assert len(rows) == 4
    assert [_wrong(lowering, row, tensors, semantics) for row in rows] == [0] * 4


@pytest.mark.parametrize("value", ["lowest", SUMS])
def test_a_bias_beyond_is_refused_where_it_is_packed(value: str | int) -> None:
    lowering = _lowering("bias, >> 8, min 127, max 0")
    beyond = lowering.geometry.bias_lowest - 1 if value == "lowest" else int(value)
    tensors = random_tensors(lowering.workload, lowering.machine, 3)
    tensors["bias"][1] = beyond
    with pytest.raises(WorkloadError, match="bias 32"):
        packed_vectors(lowering.workload, lowering.machine, lowering.geometry, tensors)


def test_any_bias_is_added_where_nothing_is_promised_of_it() -> None:
    lowering = _lowering("bias 32, >> 8, min 127, max -128")
    assert lowering.geometry.bias_lift == 0
    tensors = random_tensors(lowering.workload, lowering.machine, 3)
    tensors["bias"][:3] = [-(1 << 31), (1 << 31) - 1, -(1 << 30)]
    assert _wrong(lowering, _values(lowering)[0], tensors, "functional") == 0


@pytest.mark.parametrize(
    "epilogue",
    ["bias", "bias, >> 4, min 127, max 0", "bias, >> 8, min 127", "bias, add, >> 8, min 1, max 0",
     "bias, relu, >> 8, min 127", ">> 8, bias, min 127, max 0", "bias, >> 8, min 300, max 0",
     "bias, residual 8, >> 8, min 127, max 0", "bias, >> 29, min 127, max 0",
     "bias, >> channel, min 127, max 0", ">> channel 8, min 127, max 0"],
)  # fmt: skip
def test_other_epilogues_keep_the_reset(epilogue: str) -> None:
    assert _lowering(epilogue).geometry.bias_lift == 0
    workload = parse_workload(LAYER, "bias, >> 8, min 127, max 0")
    assert Lowering.for_workload(workload, PYNQ, "template").geometry.bias_lift == 0


def test_it_saves_an_iteration_an_accumulator_behind_the_first_of_each_slot() -> None:
    plain, added, lifted = (
        _lowering(f"{bias}>> 8, min 127, max 0") for bias in ("", "bias 32, ", "bias, ")
    )
    outputs = 3 * 99
    for row in _values(plain)[:8]:
        counts = [lowering.counts(row[None])[1][0] for lowering in (plain, added, lifted)]
        alus = [c.alu_iterations for c in counts]
        assert alus == [3 * outputs, 4 * outputs, 4 * outputs]
        resets = [c.reset_iterations for c in counts]
        assert resets[0] == resets[1] >= resets[2]
        slots = row[[knob.name for knob in plain.space.knobs].index("acc_slots")]
        tiles = int(counts[2].tiles)
        assert resets[2] == counts[2].acc_used // slots * min(slots, tiles)


def test_packing_is_undone() -> None:
    spec = VtaSpec.from_mapping({"LOG_BATCH": 1})
    for epilogue in ("bias, >> 8", "bias, >> channel 8", "bias 32, >> channel", ">> channel", ""):
        lowering = _lowering(f"{epilogue}, min 127, max 0", spec)
        tensors = random_tensors(lowering.workload, lowering.machine, 5)
        bound = lowering.workload, lowering.machine, lowering.geometry
        vectors = unpacked_vectors(*bound, packed_vectors(*bound, tensors))
        assert sorted(vectors) == sorted(set(tensors) - {"data", "weight"})
        assert all((vectors[kind] == tensors[kind]).all() for kind in vectors)


@pytest.mark.parametrize(("promise", "beyond"), [("", 32), ("", -1), (" 8", 7), (" 8", 17)])
def test_shifts_that_the_epilogue_excludes_are_refused(promise: str, beyond: int) -> None:
    lowering = _lowering(f"bias, >> channel{promise}, min 127, max 0")
    tensors = random_tensors(lowering.workload, lowering.machine, 3)
    tensors["shr_channel"][1] = beyond
    with pytest.raises(WorkloadError, match="'>> channel' in it for any"):
        packed_vectors(lowering.workload, lowering.machine, lowering.geometry, tensors)


def test_a_shift_a_channel_takes_an_iteration_more() -> None:
    """The per-channel shift needs no reset either, because its bias replaces the reset."""
    alike, own = (_lowering(f"bias, >> {by}8, min 127, max 0") for by in ("", "channel "))
    for row in _values(own)[:8]:
        one, other = (lowering.counts(row[None])[1][0] for lowering in (alike, own))
        assert one.alu_iterations == other.alu_iterations
        assert one.reset_iterations == other.reset_iterations
        assert other.acc_bytes == 2 * one.acc_bytes
