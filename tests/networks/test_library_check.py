"""Tests the check of a built library against its source model: samples, types and tolerances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.networks.artifact.library_check import (
    decisive_samples,
    output_error,
    pack_samples,
    samples_of,
    unchecked_outputs,
    unpack_samples,
)
from tilewright.networks.errors import InaccurateError, InputError
from tilewright.networks.sample_values import NetworkSample, draw_samples

Array = NDArray[Any]
Arrays = Mapping[str, Array]


class Network:
    """A source model in numpy with inputs of the given shapes and dtypes."""

    constants: Sequence[int] = ()
    halves: Sequence[str] = ()
    is_undrawable = False

    def __init__(
        self, kinds: Mapping[str, tuple[tuple[int, ...], str]], run: Callable[[Arrays], Arrays]
    ) -> None:
        self.kinds, self.reference = kinds, run

    def seeded_inputs(self, seed: int = 0) -> dict[str, Array]:
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.kinds.items()}


def divide(inputs: Arrays) -> Arrays:
    """Refuse a divisor of zero, as onnxruntime does."""
    if (inputs["b"] == 0).any():
        raise InputError("division by zero")
    return {"y": inputs["a"] // inputs["b"]}


def cut_off(inputs: Arrays) -> Arrays:
    """Square the first `n` values and set the others to zero."""
    counted = np.arange(16) < inputs["n"]
    return {"y": np.where(counted, inputs["x"] ** 2, 0).astype(np.float32)}


LENGTHS = Network({"x": ((1, 16), "float32"), "n": ((1,), "int64")}, cut_off)


def test_integers_are_those_that_the_model_accepts() -> None:
    kinds = {"a": ((3,), "int64"), "b": ((3,), "int64")}
    samples = list(draw_samples(kinds, divide))
    assert samples[0].kind == "normal"
    assert all((sample.inputs["b"] != 0).all() for sample in samples)
    assert min(sample.inputs["b"].min() for sample in samples) < 0
    assert max(sample.inputs["b"].max() for sample in samples) > 99
    zeros = next(sample for sample in samples if sample.kind == "zero")
    assert not zeros.inputs["a"].any()  # each input accepts other values


def test_a_constant_of_the_model_is_tried_where_it_refuses_other_integers() -> None:
    """The network accepts only one sampling rate, which is a constant of the model."""

    def run(inputs: Arrays) -> Arrays:
        if inputs["rate"] != 16000:
            raise InputError("another rate")
        return {"y": inputs["x"]}

    kinds = {"x": ((1, 4), "float32"), "rate": ((), "int64")}
    samples = list(draw_samples(kinds, run, (24000, 16000)))
    assert {int(sample.inputs["rate"]) for sample in samples} == {16000}
    assert len(samples) > 3


def test_a_model_that_accepts_no_integers_is_refused_with_its_own_words() -> None:
    def refuse(inputs: Arrays) -> Arrays:
        raise InputError("of no use")

    with pytest.raises(InputError, match="of no use"):
        next(draw_samples({"n": ((1,), "int64")}, refuse))


def test_a_length_leaves_nothing_out_in_one_of_the_samples() -> None:
    samples = samples_of(LENGTHS)
    assert any((sample.inputs["n"] >= 16).all() for sample in samples)
    floats = {sample.kind: sample.inputs["x"] for sample in samples}
    assert not floats["zero"].any()
    assert (floats["negative"] <= 0).all()
    assert np.abs(floats["large"]).max() > 100


def test_a_library_that_is_wrong_beyond_the_first_number_is_refused() -> None:
    """With lengths of only 0 and 1, the check would see only the first of sixteen values."""

    def wrong(inputs: Arrays) -> Arrays:
        result = np.array(cut_off(inputs)["y"])
        result[:, 1:] *= 1.5
        return {"y": result}

    with pytest.raises(InaccurateError, match=r"output 'y' of net is off by 0\.\d+ .* on a sample"):
        decisive_samples(samples_of(LENGTHS), wrong, LENGTHS, 1e-4, "net")


def test_element_types_and_shapes_are_compared_before_values() -> None:
    real = np.ones((2, 3), np.float32)
    assert output_error("y", real, real, 1e-4).error == 0
    wide = output_error("y", real.astype(np.float64), real, 1e-4)
    assert (wide.error, wide.problem) == (np.inf, "its type is float64 instead of float32")
    assert "its shape is (3, 2)" in output_error("y", real.T, real, 1e-4).problem
    with pytest.raises(InaccurateError, match="its type is float64 instead of float32"):
        decisive_samples(
            [NetworkSample("normal", {}, {"y": real})], lambda _: {"y": real.astype(np.float64)},
            LENGTHS, 1e-4, "net",
        )  # fmt: skip


def test_an_output_near_zero_may_differ_by_what_is_nothing() -> None:
    real = np.full(4, 1e-6, np.float32)
    assert output_error("y", real + np.float32(1e-7), real, 1e-4).error < 1e-4
    assert output_error("y", real + np.float32(1e-5), real, 1e-4).error > 1e-4
    one = np.ones(4, np.float32)
    assert output_error("y", one + np.float32(1e-3), one, 1e-4).error > 1e-4
    assert output_error("y", np.full(4, np.nan, np.float32), one, 1e-4).error == np.inf


def test_a_sample_on_which_rounding_decides_is_left_out() -> None:
    def ordered_by_rounding(inputs: Arrays) -> Arrays:
        """Return the index of the largest score. For inputs of zero, all scores are equal."""
        return {"y": np.float32([5 if 0 < np.abs(inputs["x"]).max() < 1 else 0])}

    def ours(inputs: Arrays) -> Arrays:
        return {"y": np.float32([0 if inputs["x"].any() else 7])}

    kinds = {"x": ((1, 4), "float32")}
    samples = [
        NetworkSample(
            kind, {"x": np.full((1, 4), value, np.float32)}, {"y": np.zeros(1, np.float32)}
        )
        for kind, value in (("normal", 1), ("zero", 0))
    ]
    unstable, stable = (
        Network(kinds, ordered_by_rounding),
        Network(kinds, lambda _: samples[1].outputs),
    )
    kept, error = decisive_samples(samples, ours, unstable, 1e-4, "net")
    assert ([sample.kind for sample in kept], error) == (["normal"], 0)
    with pytest.raises(InaccurateError, match="sample of zero inputs"):
        decisive_samples(samples, ours, stable, 1e-4, "net")


def test_an_output_that_never_changes_is_not_checked() -> None:
    def run(inputs: Arrays) -> Arrays:
        return {"y": inputs["x"], "always": np.ones(3, np.float32)}

    assert unchecked_outputs(samples_of(Network({"x": ((2,), "float32")}, run))) == ["always"]


def test_samples_are_read_as_they_were_written_also_those_of_an_earlier_version() -> None:
    samples = samples_of(LENGTHS)
    read = unpack_samples(pack_samples(samples), ["x", "n"], ["y"])
    assert [sample.kind for sample in read] == [sample.kind for sample in samples]
    for one, other in zip(read, samples, strict=True):
        np.testing.assert_array_equal(one.inputs["x"], other.inputs["x"])
        np.testing.assert_array_equal(one.outputs["y"], other.outputs["y"])
    (only,) = unpack_samples(pack_samples(samples[:1]), ["x", "n"], ["y"])
    assert only.kind == "normal"


@pytest.mark.parametrize("reals_differ", [False, True])
def test_integers_may_differ_on_large_inputs_and_floats_may_not(reals_differ: bool) -> None:
    """Large inputs saturate scores, so argmax may differ. A wrong score is still an error."""

    def run(inputs: Arrays) -> Arrays:
        score = np.tanh(inputs["x"])
        return {"best": np.argmax(score, axis=1), "score": score}

    def ours(inputs: Arrays) -> Arrays:
        made = dict(run(inputs))
        if np.abs(inputs["x"]).max() > 50:
            made["best"] = made["best"] + 1
            made["score"] = made["score"] * (0.9 if reals_differ else 1)
        return made

    network = Network({"x": ((1, 64), "float64")}, run)
    samples = samples_of(network)
    if reals_differ:
        with pytest.raises(InaccurateError, match="sample of large inputs"):
            decisive_samples(samples, ours, network, 1e-4, "net")
    else:
        kept, _ = decisive_samples(samples, ours, network, 1e-4, "net")
        assert "large" not in [sample.kind for sample in kept]


def test_inputs_without_dimensions_are_drawn_as_arrays() -> None:
    """A NumPy scalar is not accepted by onnxruntime, so the comparison would be skipped."""
    kinds: dict[str, tuple[tuple[int, ...], str]] = {
        "flag": ((), "bool"),
        "count": ((), "int32"),
        "real": ((), "float32"),
    }
    samples = list(draw_samples(kinds, lambda inputs: {"y": inputs["real"]}))
    assert len(samples) > 4
    for sample in samples:
        for name, (shape, dtype) in kinds.items():
            assert isinstance(sample.inputs[name], np.ndarray)
            assert sample.inputs[name].shape == shape
            assert sample.inputs[name].dtype == dtype
