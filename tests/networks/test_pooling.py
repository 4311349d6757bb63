"""Tests which max-pools are fused with the convolution before them.

Tuning and building must make the same decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright import networks
from tilewright.networks import artifact
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.channel_blocks import pad_to_blocks
from tilewright.networks.offloading.pooling import fuse_pool, pool_where_faster, with_pools
from tilewright.targets.capabilities import Blocks
from tilewright.targets.layer import Layer
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload, canonical, parse_workload
from tilewright.tuning.build_artifact import integer_network, read_model
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.schedule_lookup import pool_rule

BLOCKS = Blocks(1, 16, 16)
USUAL = "bias, >> 8, min 127, max 0"
CONVOLUTION = parse_workload("conv2d:n=1,c=32,h=28,w=28,o=64,k=3,s=1,p=1", USUAL)
POOL = parse_workload("max_pool:n=1,c=64,h=28,w=28,k=3,s=2,p=1")
BOTH = CONVOLUTION.with_patterns(Pool(3, 3, 2, 2, 1, 1, 1, 1))


def taking(one: float, two: float) -> Accelerator:
    """Return an accelerator that estimates `one` for a pooled layer and `two` for two layers."""

    def estimate(workload: Workload) -> float:
        return one if workload.pool is not None else two / 2

    return Accelerator(BLOCKS, estimate=estimate)


def test_what_is_sooner_by_the_estimates_is_taken() -> None:
    assert pool_where_faster(CONVOLUTION, POOL, taking(9, 10)) == BOTH
    assert pool_where_faster(CONVOLUTION, POOL, taking(10, 10)) is None
    assert pool_where_faster(CONVOLUTION, POOL, Accelerator(BLOCKS)) is None


@pytest.mark.parametrize(
    "epilogue",
    [
        "bias, >> 8",  # the stored values wrap around
        "bias, >> 8, min 300, max 0",
        "bias, residual 4, >> 8, min 127, max 0",
        "<< 1, min 127, max 0",  # sums may overflow
        "bias, min 127, max 0, >> 1, + 200",
    ],
)
def test_only_what_keeps_the_order_of_sums_is_pooled_before(epilogue: str) -> None:
    assert fuse_pool(CONVOLUTION.with_epilogue(epilogue), POOL) is None


def test_only_a_pool_of_the_whole_image_is_part_of_a_convolution() -> None:
    assert fuse_pool(CONVOLUTION, replace(POOL, height=27)) is None
    assert fuse_pool(BOTH, replace(POOL, height=14, width=14)) is None
    huge = replace(CONVOLUTION, in_channels=1 << 14)
    assert fuse_pool(huge, POOL) is None  # its sums may overflow
    clipped = fuse_pool(CONVOLUTION, POOL.with_epilogue("max 3"))
    assert clipped is not None
    assert [str(op) for op in clipped.epilogue] == ["bias", ">> 8", "min 127", "max 0", "max 3"]


def layers() -> list[Layer]:
    first = Layer("conv", ("conv", "relu"), "Conv", CONVOLUTION, "x", "a")
    return [first, Layer("pool", ("pool",), "MaxPool", POOL, "a", "b")]


def always(convolution: Workload, pool: Workload) -> Workload | None:
    return fuse_pool(convolution, pool)


def never(convolution: Workload, pool: Workload) -> Workload | None:
    return None


@pytest.mark.parametrize(
    ("rule", "readers", "results", "merged"),
    [
        (always, {}, {"b"}, True),
        (never, {}, {"b"}, False),
        (always, {}, {"a", "b"}, False),
        (always, {"c": {"a"}}, {"b", "c"}, False),
    ],
)
def test_what_others_read_stays_a_layer(
    rule: Callable[[Workload, Workload], Workload | None],
    readers: dict[str, set[str]],
    results: set[str],
    merged: bool,
) -> None:
    reads = {"a": {"x"}, "b": {"a"}} | readers
    pools = with_pools(layers(), reads, results, rule)
    if not merged:
        assert [layer.output for layer in pools] == ["a", "b"]
        return
    (layer,) = pools
    assert (layer.name, layer.names) == ("conv", ("conv", "relu", "pool"))
    assert (layer.workload, layer.data, layer.output) == (BOTH, "x", "b")


def test_a_bias_beside_which_sums_overflow_keeps_them_apart() -> None:
    first, pool = layers()
    far = replace(first, bias=np.full(64, np.iinfo(np.int32).max, np.int32))
    assert len(with_pools([far, pool], {"a": {"x"}, "b": {"a"}}, {"b"}, always)) == 2


@pytest.mark.slow(seconds=2.5)
@pytest.mark.parametrize(
    "name", ["digits_cnn", pytest.param("resnet18", marks=pytest.mark.nightly(seconds=18))]
)
def test_tuning_and_building_agree(name: str, tmp_path: Path) -> None:
    target = make_target("vta-pynq")
    tuned = networks.load(name).workloads_on(Accelerator.for_target(target))
    assert sum(workload.pool is not None for workload, _, _ in tuned) == 1
    options = BuildOptions(model=name, out=tmp_path / "art")
    graph = integer_network(options, target, read_model(options)).graph
    built = artifact.canonical_workloads(graph)
    of_both = [
        {canonical(pad_to_blocks(workload, graph.blocks)) for workload in result if workload.pool}
        for result in ([workload for workload, _, _ in tuned], built)
    ]
    assert of_both[0] == of_both[1]


def test_the_report_says_where_the_pool_went() -> None:
    report = networks.load("resnet18").report_on(Accelerator.for_target(make_target("vta-pynq")))
    rows = {row.op_type: row for row in report.operators}
    pool = rows["MaxPool"]
    assert (pool.status, pool.workload) == ("offloaded", None)
    assert pool.reason == "part of the sums of 'conv1'"


def test_a_tuned_folder_decides_where_it_is_given(tmp_path: Path) -> None:
    """A folder of an earlier version has schedules for two separate layers."""
    target = make_target("vta-pynq")
    for texts, expected in (((CONVOLUTION, POOL), None), ((BOTH,), BOTH)):
        rows = ", ".join(
            f'{{"workload": "{w}", "epilogue": "{", ".join(map(str, w.epilogue))}", '
            '"space": "extended", "config": [0]}'
            for w in texts
        )
        (tmp_path / "schedules.json").write_text(
            '{"version": 1, "network": "n", "target": {"name": "vta-pynq"}, "schedules": ['
            + rows + "]}"
        )  # fmt: skip
        assert pool_rule(tmp_path, target)(CONVOLUTION, POOL) == expected
