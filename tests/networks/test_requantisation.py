"""Tests the conversion of scales to shifts: the report predicts what the build computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.networks.epilogues import requantise_shift
from tilewright.networks.fused_calls import FusedCall, FusedStep, Quantisation
from tilewright.networks.requantisation import MAX_SHIFT, shifts_of

# (data, weights, output) scales → (shift, exact), recorded when the report still computed shifts by
# itself. The last two are just within and just beyond the tolerance around a power of two.
RECORDED = [
    ((0.5,), (0.25,), (1.0,), (3, True)),
    ((0.5,), (0.25,), (0.5,), (2, True)),
    ((0.02,), (0.01,), (0.1,), (9, False)),
    ((2**-7,), (2**-9, 2**-8, 2**-10), (2**-4,), (12, True)),
    ((0.1,), (0.003, 0.004), (0.2,), (9, False)),
    ((4.0,), (4.0,), (0.5,), (0, True)),
    ((2**-20,), (2**-20,), (1.0,), (31, True)),
    ((0.1,), (0.0,), (1.0,), (8, False)),
    ((0.1,), (0.0, 0.1 * 2**-5), (0.01,), (5, True)),
    ((), (1.0,), (1.0,), (8, True)),
    ((1.0,), (1.0,), (2**8 * (1 + 1e-9),), (8, True)),
    ((1.0,), (1.0,), (2**8 * (1 + 3e-4),), (8, False)),
]  # fmt: skip

Scales = tuple[float, ...]


def call_of(data: Scales, weights: Scales, output: Scales) -> FusedCall:
    tensors = [Quantisation("int8", scale, (0,) * len(scale)) for scale in (data, weights, output)]
    return FusedCall(
        "conv2d", "conv", (1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1),
        steps=(FusedStep("quantise", "quantise", tensors[2]),),
        data_quantisation=tensors[0], weight_quantisation=tensors[1],
    )  # fmt: skip


@pytest.mark.parametrize(("data", "weights", "output", "expected"), RECORDED)
def test_predicted_shifts_are_those_that_were_recorded(
    data: Scales, weights: Scales, output: Scales, expected: tuple[int, bool]
) -> None:
    assert requantise_shift(call_of(data, weights, output)) == expected


@given(
    st.integers(0, MAX_SHIFT),
    st.sampled_from((0.0, 1e-9, 1e-6, 9e-5, 1.1e-4, 1e-3, 0.1)),
    st.floats(1e-4, 10.0),
)
def test_the_report_and_the_build_agree_on_which_scales_are_shifts(
    shift: int, off: float, output: float
) -> None:
    weight = output * 2.0**-shift * (1 + off)
    built = shifts_of(np.array([weight / output]))
    predicted, exact = requantise_shift(call_of((1.0,), (weight,), (output,)))
    assert exact == (built is not None)
    if built is not None:
        assert predicted == built[0] == shift
