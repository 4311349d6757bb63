"""Checks that a schedule space is measured once, and that its replay equals the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.search import Round
from tilewright.targets import make_target
from tilewright.targets.base import (
    Capabilities,
    Configs,
    Lowered,
    Measurements,
    Space,
    Target,
)
from tilewright.targets.ground_truth import (
    ground_truth_path,
    ground_truth_table,
    make_replay_target,
)
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, parse_workload

WORKLOAD = parse_workload("conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1")


@pytest.fixture(scope="module")
def target() -> VtaTarget:
    return make_target("vta-pynq", "template")


class Counting:
    """A target that counts the measured configs."""

    deterministic = True

    def __init__(self, inner: VtaTarget) -> None:
        self.inner, self.measured = inner, 0
        self.name, self.fingerprint = inner.name, inner.fingerprint
        self.capabilities: Capabilities = {}

    def hardware_features(self) -> dict[str, float]:
        return self.inner.hardware_features()

    def space(self, workload: Workload) -> Space:
        return self.inner.space(workload)

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        return self.inner.lower(workload, configs)

    def measure(self, lowered: Lowered) -> Measurements:
        self.measured += len(lowered)
        return self.inner.measure(lowered)


def test_every_config_is_measured_once_and_read_back_equal(
    target: VtaTarget, tmp_path: Path
) -> None:
    slow, done = Counting(target), []
    table = ground_truth_table(slow, WORKLOAD, tmp_path, done.append)
    again = ground_truth_table(slow, WORKLOAD, tmp_path)
    assert slow.measured == sum(done) == len(table) == target.space(WORKLOAD).size
    assert again.digest == table.digest
    assert again.optimum == table.optimum
    np.testing.assert_array_equal(again.hidden.matrix, table.hidden.matrix)
    assert again.hidden.columns == table.hidden.columns


def test_one_pass_and_chunks_give_the_same_table(target: VtaTarget) -> None:
    assert (
        ground_truth_table(target, WORKLOAD).digest
        == ground_truth_table(Counting(target), WORKLOAD).digest
    )


def test_the_key_holds_workload_hardware_and_space(target: VtaTarget, tmp_path: Path) -> None:
    other = parse_workload("conv2d:n=1,c=32,h=14,w=14,o=64,k=1,s=1,p=0")
    paths = {
        ground_truth_path(of, workload, tmp_path)
        for of in (target, make_target("vta-de10", "template"), make_target("vta-pynq", "extended"))
        for workload in (WORKLOAD, other)
    }
    assert len(paths) == 6


@pytest.mark.parametrize("damage", ["torn", "flipped", "foreign"])
def test_a_damaged_table_is_measured_anew(target: VtaTarget, tmp_path: Path, damage: str) -> None:
    counting = Counting(target)
    table = ground_truth_table(counting, WORKLOAD, tmp_path)
    path = ground_truth_path(target, WORKLOAD, tmp_path)
    data = path.read_bytes()
    if damage == "torn":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "foreign":
        path.write_bytes(b"no table")
    else:
        import pyarrow.parquet as pq

        result = pq.read_table(path)
        cycles = result["cycles"].to_numpy().copy()
        cycles[np.argmax(cycles)] += 1
        column = result.column_names.index("cycles")
        pq.write_table(result.set_column(column, "cycles", [cycles]), path)
    assert ground_truth_table(counting, WORKLOAD, tmp_path).digest == table.digest
    assert counting.measured == 2 * len(table)


@pytest.mark.parametrize("tuner", ["default", "ml2tuner", "autotvm", "random"])
def test_a_replayed_run_is_the_run_on_the_target(
    target: VtaTarget, tmp_path: Path, tuner: str
) -> None:
    replay = make_replay_target(target, [ground_truth_table(target, WORKLOAD, tmp_path)])
    real, again = (_trials(of, tuner) for of in (target, replay))
    assert len(real) == len(again) >= 5
    for one, two in zip(real, again, strict=True):
        np.testing.assert_array_equal(one.configs, two.configs)
        np.testing.assert_array_equal(one.measured.status, two.measured.status)
        np.testing.assert_array_equal(one.measured.reason, two.measured.reason)
        np.testing.assert_array_equal(one.measured.cycles, two.measured.cycles)
        assert (one.lowered, one.failed_compiles) == (two.lowered, two.failed_compiles)
        assert one.model_errors == two.model_errors


def _trials(target: Target, tuner: str) -> list[Round]:
    return list(tune(target, WORKLOAD, make_explorer(tuner), trials=80, batch=16, seed=3))
