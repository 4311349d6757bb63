"""Tests convolutions with a projection shortcut in the same accumulators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from benchmarks.schedule_spaces.vta_programs import mismatches
from tests.targets.drawn_layers import PYNQ, accepted, with_shortcuts
from tilewright.core.errors import WorkloadError
from tilewright.targets.display_names import shape
from tilewright.targets.epilogue import EpilogueOp, parse_epilogue
from tilewright.targets.integer_reference import reference
from tilewright.targets.patterns.shortcut import Shortcut, shortcut_tensors
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.fused_shortcut import beside_of
from tilewright.targets.vta.lowering.tensor_packing import (
    packed_vectors,
    random_tensors,
    unpacked_vectors,
)
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, canonical, parse_workload

BLOCK = "conv2d:n=1,c=64,h=28,w=28,o=256,k=1,s=1,p=0,xc=128,xi=56,xs=2"


@settings(max_examples=60)
@given(workload=with_shortcuts(), scale=st.integers(0, 10), seed=st.integers(0, 2**32 - 1))
def test_the_sum_is_that_of_a_residual(workload: Workload, scale: int, seed: int) -> None:
    assert workload.shortcut is not None
    int8 = parse_epilogue("bias, >> 8, min 127, max -128")
    shifted = (*int8, EpilogueOp("shl", scale))
    together = workload.with_patterns(replace(workload.shortcut, epilogue=shifted))
    tensors = random_tensors(together, PYNQ.machine, seed)
    before = together.with_patterns(replace(workload.shortcut, epilogue=int8)).of_shortcut
    assert before is not None
    residual = reference(before, shortcut_tensors(tensors))
    apart = workload.remove_pattern(Shortcut).with_steps(
        (EpilogueOp("residual", scale), *workload.epilogue)
    )
    expected = reference(apart, tensors | {"residual": residual})
    np.testing.assert_array_equal(reference(together, tensors), expected)


def test_estimates_order_schedules() -> None:
    target = VtaTarget(PYNQ)
    workload = parse_workload(BLOCK, "bias, >> 8, min 127, max 0")
    space = target.space(workload)
    configs = space.unravel(np.random.default_rng(1).integers(0, space.size, 2048))
    _, measured = target.lower_and_measure(workload, configs)
    valid = measured.cycles > 0
    estimated = target.estimate(workload, configs[valid]).matrix[:, 0]
    assert spearmanr(estimated, measured.cycles[valid]).statistic > 0.9


def test_a_lifted_bias_saves_a_cycle_an_accumulator() -> None:
    lifted = Lowering.for_workload(_block("bias"), PYNQ, "extended")
    plain = Lowering.for_workload(_block("bias 32"), PYNQ, "extended")
    assert lifted.geometry.beside_lift > 0 == plain.geometry.beside_lift
    values = accepted(lifted, 0)
    saved = [VtaTarget(PYNQ).lower_and_measure(item.workload, _configs(item, values))[1].cycles
             for item in (lifted, plain)]  # fmt: skip
    assert (saved[0] < saved[1]).all()


@pytest.mark.parametrize("first", [">> 4", "min 90", "<< 2", "+ 3, max -700"])
def test_a_bias_behind_a_shift_or_clip_takes_no_lift_back(first: str) -> None:
    """The shift or clip would already have changed the offset that the shortcut left behind."""
    workload = _block("bias").with_epilogue(
        f"bias, >> 8, min 127, max 0 | {first}, bias, >> 6, min 127, max -128"
    )
    lowering = Lowering.for_workload(workload, PYNQ, "extended")
    assert lowering.geometry.beside_lift == 0
    assert mismatches(lowering, accepted(lowering, 0)[0]) == 0


def test_vectors_come_back_out_of_memory() -> None:
    lowering = Lowering.for_workload(_block("bias"), PYNQ, "extended")
    w, m, geo = lowering.workload, PYNQ.machine, lowering.geometry
    tensors = random_tensors(w, m, 3)
    vectors = unpacked_vectors(w, m, geo, packed_vectors(w, m, geo, tensors))
    np.testing.assert_array_equal(vectors["bias"], tensors["bias"])


def test_the_shortcut_is_one_layer_to_lowering_and_to_memory() -> None:
    lowering = Lowering.for_workload(_block("bias"), PYNQ, "extended")
    whole, compiled = lowering.shortcut_geometry, beside_of(lowering.geometry)
    assert whole is not None
    sizes = {"inp_bytes", "wgt_bytes", "bias_bytes", "add_bytes", "out_bytes", "res_bytes"}
    unread = {"res_base", "add_base", *(f"beside_{part}" for part in ("wgt_base", "bias_base"))}
    for name in set(whole._fields) - sizes - unread:
        assert getattr(whole, name) == getattr(compiled, name), name


def test_texts_and_json_round_trip() -> None:
    workload = _block("bias")
    assert Workload.from_json(workload.to_json()) == workload
    assert str(parse_workload(str(workload))) == str(workload)
    assert str(workload) == BLOCK
    assert "+ 1×1/2 128" in shape(workload)
    assert canonical(workload).shortcut != workload.shortcut
    assert canonical(canonical(workload)) == canonical(workload)


@pytest.mark.parametrize(
    ("text", "epilogue", "says"),
    [
        (BLOCK.replace("xs=2", "xs=1"), "", "its shortcut computes 56×56 pixels"),
        (BLOCK + ",mk=2,ms=2", "", "without a pool"),
        (BLOCK.replace("xc=128,", ""), "", "lacks its channels"),
        (BLOCK + ",dtype=float32", "", "needs an integer workload"),
        (BLOCK, "residual 2, >> 8", "have both an added tensor and a shortcut"),
        (BLOCK, "add, >> 8", "have both an added tensor and a shortcut"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, epilogue: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        VtaTarget(PYNQ).space(parse_workload(text, epilogue))


def test_other_spaces_have_no_shortcuts() -> None:
    with pytest.raises(WorkloadError, match="only the extended space"):
        VtaTarget(PYNQ, "template").space(parse_workload(BLOCK, ""))


def _block(bias: str) -> Workload:
    """Return the block with another bias in its shortcut."""
    workload = parse_workload(BLOCK, "bias, >> 9, min 127, max 0")
    assert workload.shortcut is not None
    epilogue = parse_epilogue(f"{bias}, >> 9, min 127, max -128, << 3")
    return workload.with_patterns(replace(workload.shortcut, epilogue=epilogue))


def _configs(lowering: Lowering, values: np.ndarray) -> np.ndarray:
    """Return the knob indices of knob values (n, 11)."""
    columns = [
        [knob.values.index(int(value)) for value in column]
        for knob, column in zip(lowering.space.knobs, values.T, strict=True)
    ]
    return np.array(columns, np.int32).T
