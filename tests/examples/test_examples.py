"""Checks that every example runs, and that plugin packages work without changes to the project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tilewright.services.prefect_server import Login
from tilewright.targets.workload import parse_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
TILEWRIGHT = Path(sys.executable).with_name("tilewright")


def run(
    folder: Path, *command: str, packages: Path | None = None, server: Login | None = None
) -> str:
    drop = ("PREFECT_", "MLFLOW_", "TILEWRIGHT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    paths = [str(packages)] * bool(packages) + [kept.get("PYTHONPATH", "")]
    named = server.settings if server else {}
    environment = (
        kept
        | named
        | {
            "TILEWRIGHT_HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }
    )
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(name: str, folder: Path) -> Path:
    """Return a folder with an example's modules and package metadata, as pip would install them."""
    place = folder / f"installed-{name}"
    shutil.copytree(EXAMPLES / name, place)
    subprocess.run(
        [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info"],
        cwd=place, check=True, capture_output=True,
    )  # fmt: skip
    return place


def test_every_example_is_run_here() -> None:
    known = {
        "README.md", "tune_a_layer.py", "offload_in_tvm.py", "my_vta.json", "roofline", "greedy",
        "data", "models", "add_a_target.ipynb", "ask_logged_models.ipynb", "tune_a_layer.ipynb",
    }  # fmt: skip
    assert {path.name for path in EXAMPLES.iterdir() if path.name != "__pycache__"} == known


@pytest.mark.slow(seconds=3)
def test_a_layer_is_tuned_from_python(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, str(EXAMPLES / "tune_a_layer.py"))
    assert "round 2:" in printed
    assert "tile_h" in printed


@pytest.mark.nightly(seconds=12)
def test_a_tvm_script_uses_the_accelerator(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, str(EXAMPLES / "offload_in_tvm.py")).splitlines()
    layers = [line for line in printed if line.endswith("cycles")]
    assert len(layers) == 4  # the pool is fused with the convolution before it
    alone, offloaded = ([float(n) for n in line.split()[2:]] for line in printed[-2:])
    assert len(alone) == len(offloaded) == 10
    np.testing.assert_allclose(offloaded, alone, atol=0.25)  # one step of the last layer


@cache
def ideal(text: str) -> float:
    """Return the mean latency in seconds of the best config in a workload's whole space.

    Each config is measured a hundred times.
    """
    sys.path.insert(0, str(EXAMPLES / "roofline"))
    try:
        from roofline_machine import RooflineMachine
    finally:
        sys.path.pop(0)
    machine, workload = RooflineMachine(), parse_workload(text)
    space = machine.space(workload)
    lowered = machine.lower(workload, space.unravel(np.arange(space.size)))
    return float(np.nanmin(np.mean([machine.measure(lowered).seconds for _ in range(100)], axis=0)))


@pytest.mark.parametrize("bare", [True, pytest.param(False, marks=pytest.mark.nightly(seconds=12))])
@pytest.mark.slow(seconds=12)
def test_a_target_of_another_package_is_tuned(
    tmp_path: Path, bare: bool, prefect_server: Login
) -> None:
    packages = installed("roofline", tmp_path)
    assert "roofline" in run(tmp_path, str(TILEWRIGHT), "targets", packages=packages)
    command = [str(TILEWRIGHT), "tune", "digits_cnn", "--target", "roofline", "--trials", "24"]
    printed = run(
        tmp_path, *command, "--out", "out", *["--bare"] * bare, packages=packages,
        server=prefect_server,
    )  # fmt: skip
    assert "out" in printed
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["target"] == "roofline"
    trials = pd.read_parquet(tmp_path / "out" / "trials.parquet")
    valid = trials[trials["status"] == "valid"]
    assert (valid["seconds"] > 0).all()
    assert {"compile_error", "run_error"} & set(trials["status"])
    texts = {row["id"]: row["workload"] for row in summary["workloads"]}
    for workload, best in valid.groupby("workload")["seconds"].min().items():
        assert best < 1.1 * ideal(texts[workload])
    for row in summary["workloads"]:  # reported latencies are right despite 2 % noise
        assert 0.98 * ideal(row["workload"]) < row["tuned_seconds"] < 1.12 * ideal(row["workload"])
        assert row["validation"]["measurements"] == 39  # blocks of 5, 3, 2 and 1 schedules
    assert summary["verified"] is False


@pytest.mark.nightly(seconds=8)
def test_tuners_are_compared_on_a_target_without_cycles(tmp_path: Path) -> None:
    """Regret is relative to the fastest latency in the whole space, which is measured first."""
    packages = installed("roofline", tmp_path)
    printed = run(
        tmp_path, str(TILEWRIGHT), "compare", "--target", "roofline", "--tuners", "random,default",
        "--workloads", "dense:n=1,c=64,o=64", "--seeds", "0-1", "--trials", "8", "--batch", "4",
        "--jobs", "1", "--no-mlflow", "--out", "compared", packages=packages,
    )  # fmt: skip
    assert "optimum" in printed
    document = json.loads((tmp_path / "compared" / "comparison.json").read_text())
    (table,) = (tmp_path / "home" / "oracle").glob("*.parquet")
    measured = pd.read_parquet(table)
    fastest = float(measured.loc[measured["status"] == "valid", "seconds"].min())
    assert list(document["optimum_seconds"].values()) == [fastest]
    assert list(document["optimum"].values()) == [None]
    for item in document["runs"]:
        assert item["best_cycles"] == [None] * 8
        known = [best for best in item["best_seconds"] if best is not None]
        assert known
        assert known == sorted(known, reverse=True)
        assert set(known) <= set(measured["seconds"])
    page = (tmp_path / "compared" / "report.html").read_text()
    assert "optimum, ms" in page
    assert "optimum, cycles" not in page
    assert "Tuners on roofline<" in page


@pytest.mark.slow(seconds=8)
def test_a_tuner_of_another_package_tunes(tmp_path: Path) -> None:
    packages = installed("greedy", tmp_path)
    assert "greedy" in run(tmp_path, str(TILEWRIGHT), "tuners", packages=packages)
    target = str(EXAMPLES / "my_vta.json")
    command = [str(TILEWRIGHT), "tune", "digits_cnn", "--target", target, "--tuner", "greedy"]
    run(tmp_path, *command, "--trials", "24", "--bare", "--out", "out", packages=packages)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["total"]["tuned_cycles"] <= summary["total"]["rule_cycles"]
