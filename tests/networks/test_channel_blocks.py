"""Tests rewriting layers to whole channel blocks: equal results, at the lowest estimated cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.channel_blocks import (
    best_unfold,
    image_bytes,
    iterations,
    pad_to_blocks,
    wasted_share,
)
from tilewright.networks.offloading.workloads import unfold_for
from tilewright.targets.capabilities import Blocks
from tilewright.targets.im2col import Unfold
from tilewright.targets.registry import make_target
from tilewright.targets.vta.lowering.tensor_packing import reference
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import Workload, parse_workload

BLOCKS = Blocks(1, 16, 16)
FIRST_OF_RESNET = parse_workload("conv2d:n=1,c=3,h=224,w=224,o=64,k=7,s=2,p=3")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("conv2d:n=1,c=24,h=8,w=8,o=40,k=3,s=1,p=1", "conv2d:n=1,c=32,h=8,w=8,o=48,k=3,s=1,p=1"),
        ("dense:n=3,c=100,o=10", "dense:n=4,c=112,o=16"),
        (
            "conv2d:n=1,c=24,h=8,w=8,o=24,k=3,s=1,p=1,g=24",
            "conv2d:n=2,c=32,h=8,w=8,o=32,k=3,s=1,p=1,g=32",
        ),
        (
            "conv2d:n=2,c=64,h=8,w=8,o=32,k=1,s=1,p=0,g=4",
            "conv2d:n=2,c=64,h=8,w=8,o=32,k=1,s=1,p=0,g=4",
        ),
        ("max_pool:n=2,c=20,h=8,w=8,k=2,s=2,p=0", "max_pool:n=2,c=32,h=8,w=8,k=2,s=2,p=0"),
        ("max_pool:n=2,c=1,h=8,w=8,k=2,s=2,p=0", "max_pool:n=2,c=1,h=8,w=8,k=2,s=2,p=0"),
    ],
)
def test_channels_groups_and_rows_are_padded_to_blocks(text: str, expected: str) -> None:
    blocks = Blocks(2, 16, 16)
    result = pad_to_blocks(parse_workload(text), blocks)
    assert str(result).replace("n=1", "n=2") == expected.replace("n=1", "n=2")
    assert pad_to_blocks(result, blocks) == result


def test_groups_narrower_than_a_block_are_multiplied_together() -> None:
    depthwise = parse_workload("conv2d:n=1,c=512,h=14,w=14,o=512,k=3,s=1,p=1,g=512")
    assert iterations(depthwise, BLOCKS) == 56_448
    assert wasted_share(depthwise, BLOCKS) == 15 / 16
    few = parse_workload("conv2d:n=1,c=6,h=4,w=4,o=10,k=1,s=1,p=0,g=2")
    assert iterations(few, BLOCKS) == 16  # both groups in one block
    wide = parse_workload("conv2d:n=1,c=48,h=4,w=4,o=48,k=1,s=1,p=0,g=2")
    assert iterations(wide, BLOCKS) == 16 * 3 * 3  # groups of 24, one block and a half each


@pytest.mark.parametrize("target", ["vta-pynq", "vta-de10", None])
def test_the_first_convolution_of_resnet_becomes_space_to_depth(target: str | None) -> None:
    if target is None:
        unfold = best_unfold(FIRST_OF_RESNET, BLOCKS)
    else:
        unfold = unfold_for(FIRST_OF_RESNET, Accelerator.for_target(make_target(target)))
    assert unfold is not None
    written = pad_to_blocks(unfold.workload(FIRST_OF_RESNET), BLOCKS)
    assert str(written) == "conv2d:n=1,c=16,h=115,w=115,o=64,k=4,s=1,p=0"
    assert iterations(written, BLOCKS) / iterations(FIRST_OF_RESNET, BLOCKS) == 16 / 49


def test_what_counts_decides_what_is_cheapest() -> None:
    """The cost model decides how a kernel is unfolded.

    If only iterations count, the whole kernel is unfolded into channels. The host then packs ten
    times as many bytes.
    """

    def sooner(workload: Workload, _: Unfold | None) -> float:
        return float(iterations(workload, BLOCKS))

    unfold = best_unfold(FIRST_OF_RESNET, BLOCKS, sooner)
    assert unfold is not None
    assert (unfold.rows, unfold.cols) == (7, 7)
    size = image_bytes(unfold.workload(FIRST_OF_RESNET), BLOCKS)
    assert size == 112 * 112 * 160

    def smaller(workload: Workload, _: Unfold | None) -> float:
        return float(image_bytes(workload, BLOCKS))

    unfold = best_unfold(FIRST_OF_RESNET, BLOCKS, smaller)
    assert unfold is not None
    assert unfold.rows * unfold.cols * 3 <= 16


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:n=1,c=16,h=8,w=8,o=16,k=3,s=1,p=1",  # fills a block
        "conv2d:n=1,c=3,h=8,w=8,o=16,k=1,s=1,p=0",  # has no other taps
        "conv2d:n=1,c=4,h=8,w=8,o=16,k=3,s=1,p=1,d=2",
        "conv2d:n=1,c=4,h=8,w=8,o=4,k=3,s=1,p=1,g=4",
        "dense:n=1,c=4,o=16",
    ],
)
def test_what_cannot_gain_stays_as_it_is(text: str) -> None:
    assert best_unfold(parse_workload(text), BLOCKS) is None


@settings(max_examples=40)
@given(
    st.integers(1, 4), st.integers(5, 12), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3),
    st.integers(0, 2), st.integers(0, 2**31),
)  # fmt: skip
def test_the_rewritten_layer_computes_the_same(
    channels: int, size: int, kernel_h: int, kernel_w: int, stride: int, pad: int, seed: int
) -> None:
    workload = Workload(
        "conv2d", 1, channels, size, size + 1, 8, kernel_h, kernel_w, stride, stride,
        pad, pad, pad, pad, post=(),
    )  # fmt: skip
    unfold = best_unfold(workload, Blocks(1, 8, 8))
    if unfold is None:
        return
    draw, machine = np.random.default_rng(seed), VtaSpec.load("vta-pynq").machine
    data = draw.integers(-8, 8, (1, channels, size, size + 1))
    weight = draw.integers(-8, 8, (8, channels, kernel_h, kernel_w))
    want = reference(workload, machine, {"data": data, "weight": weight})
    tensors = {"data": unfold.data(data), "weight": unfold.weight(weight)}
    np.testing.assert_array_equal(reference(unfold.workload(workload), machine, tensors), want)
