"""Tests exhaustive co-design results: bounds against whole spaces, and builds in several parts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.codesign.exact_solver import PART, TruthError, TruthOptions, solve
from benchmarks.codesign.truth import operators_of, relaxed_seconds, summary
from benchmarks.codesign.truth_store import (
    Damaged,
    PartDone,
    PlannedMachines,
    Truth,
    build_truth,
    read_truth,
)
from tilewright.hardware_search.hardware_space import HardwareSpace
from tilewright.targets.registry import make_target
from tilewright.targets.workload import parse_workload

SLICE = Path(__file__).parents[1] / "data" / "codesign" / "truth"
BOUNDS = (
    ("log_batch", 0, 0), ("log_block_in", 3, 4), ("log_inp_buff_size", 14, 15),
    ("log_wgt_buff_size", 16, 16), ("log_acc_buff_size", 15, 15), ("log_uop_buff_size", 13, 13),
    ("bus_bits", 64, 64),
)  # fmt: skip
OPTIONS = TruthOptions(("digits_cnn",), "vta-pynq", 0.6, BOUNDS, near=8, proofs=16)
LAYER = parse_workload("conv2d:n=1,c=64,h=7,w=7,o=32,k=3,p=1", "bias, >> 8, min 127, max -128")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """Return the exhaustive results of a dozen machines, and their folder."""
    folder = tmp_path_factory.mktemp("truth")
    return folder, build_truth(folder, OPTIONS)


@pytest.mark.parametrize("name", ["vta-pynq", "small"])
def test_branch_and_bound_finds_the_optimum_of_an_enumerated_space(name: str) -> None:
    target = make_target(name)
    result = solve(target, LAYER, replace(OPTIONS, near=4, proofs=1 << 20, gap=0.0))
    _, measured = target.enumerate(LAYER)
    assert result.exact
    assert result.best_cycles == measured.cycles[measured.valid].min()
    assert measured.cycles[result.config] == result.best_cycles
    assert result.tried < target.space(LAYER).size


def test_a_truth_that_is_not_exact_holds_the_optimum_between_its_bounds() -> None:
    target = make_target("vta-pynq")
    result = solve(target, LAYER, replace(OPTIONS, near=1, proofs=0))
    _, measured = target.enumerate(LAYER)
    optimum = measured.cycles[measured.valid].min()
    assert result.bound_cycles <= optimum <= result.best_cycles
    assert not result.exact
    assert result.tried == 1


def test_more_proofs_never_widen_what_is_known() -> None:
    target = make_target("vta-pynq")
    known = [solve(target, LAYER, replace(OPTIONS, proofs=n, gap=0.0)) for n in (0, 64, 256)]
    for less, more in pairwise(known):
        assert more.best_cycles <= less.best_cycles
        assert more.bound_cycles >= less.bound_cycles


@pytest.mark.slow(seconds=3)
def test_a_target_without_schedule_bounds_is_refused() -> None:
    with pytest.raises(TruthError, match="choose a VTA"):
        solve(make_target("cpu"), replace(LAYER, dtype="float32", post=()), OPTIONS)


def test_every_layer_of_every_machine_is_there(built: tuple[Path, Truth]) -> None:
    _, truth = built
    problem = OPTIONS.problem()
    for row in range(len(problem.hardware.points)):
        design = problem.design(row)
        mine = truth.table[truth.table["machine"] == row]
        assert sorted(mine["workload"]) == sorted(layer.workload.id for layer in design.layers)
        best = dict(zip(mine["workload"], mine["best_cycles"], strict=True))
        hertz = mine["mhz"].iloc[0] * 1e6
        layers = np.array([best[layer.workload.id] / hertz for layer in design.layers])
        assert truth.seconds("best_cycles")[row] == pytest.approx(design.seconds(layers).sum())
    assert (truth.seconds("bound_cycles") <= truth.seconds("best_cycles")).all()
    assert truth.areas == pytest.approx(problem.hardware.areas)


def test_a_build_goes_on_with_the_same_bytes(built: tuple[Path, Truth], tmp_path: Path) -> None:
    folder, whole = built
    table = (folder / "truth.parquet").read_bytes()

    def stop_after_the_first_part(event: object) -> None:
        if isinstance(event, PartDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_truth(tmp_path, OPTIONS, stop_after_the_first_part)
    with pytest.raises(TruthError, match="no finished truth"):
        read_truth(tmp_path)
    heard: list[object] = []
    build_truth(tmp_path, OPTIONS, listen=heard.append)
    machines = whole.table["machine"].nunique()
    assert heard == [PlannedMachines(machines, PART), PartDone(machines - PART)]
    assert (tmp_path / "truth.parquet").read_bytes() == table


def test_a_damaged_part_is_made_anew_and_said(built: tuple[Path, Truth]) -> None:
    folder, whole = built
    part = folder / "parts" / "00000.parquet"
    data = part.read_bytes()
    for damage in (data[: len(data) // 2], b"", bytes([*data[:100], data[100] ^ 1, *data[101:]])):
        part.write_bytes(damage)
        heard: list[object] = []
        again = build_truth(folder, OPTIONS, listen=heard.append)
        assert isinstance(heard[0], Damaged)
        assert heard[0].path == part
        assert PartDone(PART) in heard
        assert part.read_bytes() == data
        assert again.table.equals(whole.table)


def test_a_folder_of_another_truth_is_refused(built: tuple[Path, Truth], tmp_path: Path) -> None:
    folder, _ = built
    with pytest.raises(TruthError, match="another folder"):
        build_truth(folder, replace(OPTIONS, near=9))
    (tmp_path / "truth.parquet").write_bytes(b"")
    with pytest.raises(TruthError, match="built elsewhere"):
        build_truth(tmp_path, OPTIONS)


def test_what_is_damaged_cannot_be_read(built: tuple[Path, Truth], tmp_path: Path) -> None:
    folder, _ = built
    for name in ("truth.json", "truth.parquet"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert read_truth(tmp_path).networks == ("digits_cnn",)
    (tmp_path / "truth.parquet").write_bytes((folder / "parts" / "00000.parquet").read_bytes()[9:])
    with pytest.raises(TruthError, match="build it again"):
        read_truth(tmp_path)
    (tmp_path / "truth.json").write_text(json.dumps({"options": {"networks": 3}}))
    with pytest.raises(TruthError, match="build it again"):
        read_truth(tmp_path)


def test_options_come_back_from_json() -> None:
    assert TruthOptions.from_json(json.loads(json.dumps(OPTIONS.to_json()))) == OPTIONS


def test_schedules_of_the_shipped_truth_take_what_it_says() -> None:
    truth = read_truth(SLICE)
    bounds = {name: (low, high) for name, low, high in truth.options.bounds}
    hardware = HardwareSpace(make_target("vta-pynq"), truth.options.area, bounds)
    problem = truth.options.problem()
    assert len(hardware.points) == truth.table["machine"].nunique() == 35
    assert truth.table["exact"].all()
    for row in (0, 17, 34):
        design = problem.design(row)
        mine = truth.table[truth.table["machine"] == row].set_index("workload")
        for layer in design.layers:
            said, space = mine.loc[layer.workload.id], design.target.space(layer.workload)
            config = space.unravel(np.array([said["config"]]))
            cycles = design.target.measure(design.target.lower(layer.workload, config)).cycles
            assert cycles.tolist() == [said["best_cycles"]]


def test_each_layer_on_its_own_machine_is_faster_than_any_machine() -> None:
    truth = read_truth(SLICE)
    operators = operators_of(truth)
    alone = relaxed_seconds(truth, operators, truth.networks)
    machines = operators.groupby("machine")["seconds"].sum().to_numpy(np.float64)
    cpu = truth.table.groupby("machine")["cpu_seconds_digits_cnn"].first().to_numpy(np.float64)
    assert truth.seconds("best_cycles") == pytest.approx(machines + cpu)
    kinds: dict[frozenset[str], dict[str, float]] = {}
    for machine, rows in operators.groupby("machine"):
        least = kinds.setdefault(frozenset(rows["operator"] + rows["pooled"].map(str)), {})
        least["cpu"] = min(cpu[machine], least.get("cpu", np.inf))
        for operator, seconds in zip(rows["operator"], rows["seconds"], strict=True):
            least[operator] = min(seconds, least.get(operator, np.inf))
    assert alone == pytest.approx(min(sum(least.values()) for least in kinds.values()))
    best = float(truth.seconds("best_cycles").min())
    assert alone <= best
    said = summary(truth)
    assert f"the fastest takes {1e3 * best:.3f} ms; each layer on a machine of its own" in said
    assert f"{1e3 * alone:.3f} ms, which no machine that can be built beats" in said


def test_a_truth_of_other_layers_has_no_such_figure() -> None:
    truth = read_truth(SLICE)
    table = truth.table.assign(workload=truth.table["workload"].iloc[0])
    with pytest.raises(TruthError, match="was built for other layers"):
        operators_of(replace(truth, table=table))


@pytest.mark.nightly(seconds=8)
def test_the_benchmark_runs_methods_beside_a_truth_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    command = [
        sys.executable, "-P", "-m", "benchmarks.codesign.methods", "--out", str(file), "--truth",
        str(SLICE), "--trials", "24", "--quick", "--against", "random", "--methods",
    ]  # fmt: skip
    said = subprocess.run(
        [*command, "random;random:trials=2"], cwd=Path(__file__).parents[2], check=True,
        capture_output=True, text=True, env=_environment(),
    ).stdout  # fmt: skip
    assert "beside random" in said
    first = json.loads(file.read_text())["runs"]
    assert [run["spent"] for run in first] == [24] * 4
    subprocess.run(
        [*command, "random;random:trials=2;tpe"], cwd=Path(__file__).parents[2], check=True,
        capture_output=True, env=_environment(),
    )  # fmt: skip
    runs = json.loads(file.read_text())["runs"]
    assert runs[:4] == first
    assert [run["entry"] for run in runs[4:]] == ["tpe", "tpe"]


def _environment() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
