"""Tests convolutions of volumes that read their frames in place, without copying them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from onnx_graphs import model, normal, reference
from test_bfloat16_tensors import built as built_in_bfloat16
from test_bfloat16_tensors import stored
from test_compiled_libraries import built, close

from tests.draws import nightly_after
from tilewright.networks.compiled.operands_in_place import _line
from tilewright.networks.tolerances import OF_BFLOAT16

SHAPE = (1, 8, 6, 9, 7)


def chain(
    channels: int, depth: Sequence[int], pads: Sequence[int], n: int = 1, residual: bool = False
) -> onnx.ModelProto:
    """Return two convolutions of volumes.

    `depth` is the second one's (kernel, stride, dilation) along the depth axis. `pads` is its
    padding of (depth, rows, columns), the same on both sides.
    """
    taps, stride, dilation = depth
    size = 1 if pads[1] == 0 else 3
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[0, 1, 1, 0, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node(
            "Conv", ["r", "v", "b"], ["c"], name="second", pads=[*pads, *pads],
            strides=[stride, 1, 1], dilations=[dilation, 1, 1],
        ),
        helper.make_node("Add", ["c", "r"], ["s"], name="sum") if residual
        else helper.make_node("Relu", ["c"], ["s"], name="sum"),
        helper.make_node("GlobalAveragePool", ["s"], ["y"], name="pool"),
    ]  # fmt: skip
    tensors = {
        "w": normal(channels, 8, 1, 3, 3),
        "v": normal(channels if residual else 24, channels, taps, size, size, seed=1),
        "b": normal(channels if residual else 24, seed=2),
    }
    return model(nodes, tensors, (n, *SHAPE[1:]), "y")


@pytest.mark.slow(seconds=1.2)
@pytest.mark.parametrize(
    ("depth", "pads", "n", "reads"),
    nightly_after(3, [
        ((3, 2, 1), (1, 1, 1), 1, True),
        ((3, 1, 1), (1, 0, 0), 1, False),  # a kernel without padding copies nothing
        ((3, 1, 1), (1, 1, 1), 2, False),  # padding frames lie between volumes
        ((3, 1, 1), (1, 1, 1), 1, True), ((2, 1, 2), (0, 1, 1), 1, True),
        ((1, 2, 1), (0, 1, 1), 1, True),
    ]),
)  # fmt: skip
def test_frames_are_read_where_they_lie(
    depth: Sequence[int], pads: Sequence[int], n: int, reads: bool, tmp_path: Path
) -> None:
    drawn = chain(16, depth, pads, n)
    artifact = built(drawn, tmp_path)
    assert ["second" for row in artifact.rows if row.get("frames")] == ["second"] * reads
    x = normal(n, *SHAPE[1:], seed=3)
    (ours,) = artifact.infer({"x": x}).values()
    assert close(ours, reference(drawn, x))
    assert len(list(artifact.verify())) == len(artifact.rows) - reads


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("channels", nightly_after(1, [16, 32]))
def test_frames_in_bfloat16_are_read_where_they_lie(channels: int, tmp_path: Path) -> None:
    drawn = chain(channels, (3, 1, 1), (1, 1, 1), residual=True)
    artifact = built_in_bfloat16(drawn, tmp_path)
    assert [row["name"] for row in artifact.rows if row.get("frames")] == ["second"]
    assert [number for number, _ in stored(artifact)["second"]] == [0, 3]
    x = normal(*SHAPE, seed=3)
    (ours,) = artifact.infer({"x": x}).values()
    theirs = reference(drawn, x)
    assert np.abs(ours - theirs).max() < OF_BFLOAT16 * np.abs(theirs).max()


@pytest.mark.slow(seconds=0.7)
@pytest.mark.parametrize("pixels", [False, True])
def test_somebodys_own_choice_of_images_is_not_taken_for_frames(
    pixels: bool, tmp_path: Path
) -> None:
    """The images are chosen by indices from the end, or multiplied by a mask of pixels."""
    chosen = helper.make_node("Gather", ["x", "places"], ["g"], axis=0)
    masked = helper.make_node("Where", ["mask", "x", "zero"], ["g"])
    nodes = [
        masked if pixels else chosen,
        helper.make_node("Conv", ["g", "w"], ["y"], pads=[1] * 4),
    ]
    tensors = {
        "places": np.array([-1, 0, 1]), "zero": np.float32(0).reshape(()),
        "mask": np.arange(63).reshape(1, 1, 9, 7) % 2 == 0, "w": normal(16, 16, 3, 3),
    }  # fmt: skip
    used = {name for node in nodes for name in node.input}
    drawn = model(nodes, {n: t for n, t in tensors.items() if n in used}, (3, 16, 9, 7), "y")
    artifact = built(drawn, tmp_path)
    assert not any(row.get("frames") for row in artifact.rows)
    x = normal(3, 16, 9, 7, seed=3)
    (ours,) = artifact.infer({"x": x}).values()
    assert close(ours, reference(drawn, x))


@given(
    st.tuples(st.integers(2, 6), st.integers(2, 4)), st.integers(-3, 3), st.integers(1, 3),
    st.integers(1, 2), st.integers(3, 9),
)  # fmt: skip
def test_a_line_of_frames_is_found_or_is_none(
    count: tuple[int, int], first: int, step: int, apart: int, frames: int
) -> None:
    images, taps = np.indices(count)
    places = first + step * images + apart * taps
    places = np.where((places >= 0) & (places < frames), places, -1)
    line = _line(places, frames)
    if line is not None:
        again = line[0] + line[1] * images + line[2] * taps
        again = np.where((again >= 0) & (again < frames), again, -1)
        np.testing.assert_array_equal(again, places)
    wrong = places.copy()
    wrong[0, 0] = (places[0, 0] + 2) % frames  # off the line, or an index where there is none
    if line is not None and (places >= 0).sum() > 3:
        result = _line(wrong, frames)
        assert result is None or result != line
