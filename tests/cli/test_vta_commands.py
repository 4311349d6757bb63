"""Tests `tilewright vta …` and `tilewright enumerate` on a lowered program and recorded tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tilewright.targets.vta as vta
from benchmarks.schedule_spaces.vta_programs import program_with_data
from tests.cli.conftest import Place
from tilewright.targets import make_target
from tilewright.targets.vta.baseline import baseline_of
from tilewright.targets.vta.lowering.tensor_packing import random_tensors
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import parse_workload

pytestmark = pytest.mark.slow(seconds=0.5)

DATA = Path(__file__).parents[1] / "data" / "tvm-vta"
SPEC = VtaSpec.load("vta-pynq")
FILES = ("--insns", "p.insns", "--spec", "vta-pynq")


@pytest.fixture
def program(place: Place) -> tuple[Place, bytes, bytes]:
    """Return a place with a lowered convolution in the files `p.insns` and `p.dram`."""
    workload = parse_workload("conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1")
    baseline = baseline_of(workload, SPEC)
    tensors = random_tensors(workload, SPEC.machine, 0)
    lowered = program_with_data(baseline.lowering, baseline.values, tensors)
    assert lowered is not None
    insns, dram = lowered.insn_bytes, lowered.dram.tobytes()
    (place.folder / "p.insns").write_bytes(insns)
    (place.folder / "p.dram").write_bytes(dram)
    return place, insns, dram


def test_cycles_are_those_of_the_simulator(program: tuple[Place, bytes, bytes]) -> None:
    place, insns, _ = program
    total, events = vta.cycles(insns, SPEC)
    done = place.run("vta", "cycles", *FILES, "--json", "--timeline", "t.json", "--plot", "p.png")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["total_cycles"] == total
    for unit in document["units"].values():
        assert sum(unit["spent"].values()) == total
    rows = json.loads((place.folder / "t.json").read_text())
    assert [(row["unit"], row["start"], row["end"]) for row in rows] == events
    assert (place.folder / "p.png").read_bytes().startswith(b"\x89PNG")


def test_timelines_come_as_tables_and_as_a_page(program: tuple[Place, bytes, bytes]) -> None:
    place, insns, _ = program
    done = place.run("vta", "cycles", *FILES, "--timeline", "t.parquet", "--plot", "p.html")
    assert done.returncode == 0, done.stderr
    total, events = vta.cycles(insns, SPEC)
    assert f"{total:,} cycles" in done.stdout
    table = pd.read_parquet(place.folder / "t.parquet")
    assert table["end"].tolist() == [end for _, _, end in events]
    page = (place.folder / "p.html").read_text()
    assert f'"total":{total}' in page
    assert "http" not in page


def test_run_writes_the_memory_after(program: tuple[Place, bytes, bytes]) -> None:
    place, insns, dram = program
    done = place.run("vta", "run", *FILES, "--dram", "p.dram", "--out", "after", "--json")
    assert done.returncode == 0, done.stderr
    assert (place.folder / "after").read_bytes() == vta.execute(insns, dram, 4096, SPEC)
    assert json.loads(done.stdout)["counters"]["gemm_counter"] > 0


def test_a_listing_assembles_to_the_same_bytes(program: tuple[Place, bytes, bytes]) -> None:
    place, insns, _ = program
    listing = place.run("vta", "disasm", *FILES).stdout
    assert "GEMM" in listing
    (place.folder / "p.asm").write_text(listing)
    done = place.run("vta", "asm", "--listing", "p.asm", "--spec", "vta-pynq", "--out", "again")
    assert done.returncode == 0, done.stderr
    assert (place.folder / "again").read_bytes() == insns


def test_lint_has_nothing_to_say_about_a_portable_program(
    program: tuple[Place, bytes, bytes],
) -> None:
    place, insns, _ = program
    assert place.run("vta", "lint", *FILES, "--dram", "p.dram").returncode == 0
    (place.folder / "p.insns").write_bytes(insns[:-16])
    done = place.run("vta", "lint", *FILES, "--dram", "p.dram", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)


def test_a_stuck_program_is_one_message(program: tuple[Place, bytes, bytes]) -> None:
    place, insns, _ = program
    for stream in (insns[:-16], insns[:-1], b"\xff" * 64):
        (place.folder / "p.insns").write_bytes(stream)
        done = place.run("vta", "cycles", *FILES)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr


def test_enumerate_agrees_with_the_recorded_stack(place: Place) -> None:
    layer = json.loads((DATA / "reference.json").read_text())
    recorded = pd.read_csv(DATA / "C10.csv.gz", keep_default_na=False, na_values=[""])
    done = place.run(
        "enumerate", "--workload", "conv2d:n=1,c=256,h=14,w=14,o=512,k=1,s=2,p=0",
        "--target", "vta-pynq", "--space", "template", "--stock", "--out", "c10.csv",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert layer
    table = pd.read_csv(place.folder / "c10.csv", keep_default_na=False, na_values=[""])
    assert table["index"].tolist() == recorded["index"].tolist()
    assert table["status"].tolist() == recorded["status"].tolist()
    valid = recorded["status"] == "valid"
    assert np.array_equal(table["cycles"][valid], recorded["cycles_pynq"][valid])
    for column in ("instructions", "inp_load_bytes", "wgt_load_bytes", "out_store_bytes"):
        assert np.array_equal(table[column][valid], recorded[column][valid])
    assert f"{int(valid.sum())} valid" in done.stdout


@pytest.mark.parametrize("suffix", ["csv.gz", "parquet"])
def test_enumerate_writes_every_format(place: Place, suffix: str) -> None:
    done = place.run(
        "enumerate", "--workload", "dense:n=1,c=32,o=32", "--epilogue", "bias, >> 4, relu",
        "--out", f"t.{suffix}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read = pd.read_parquet if suffix == "parquet" else pd.read_csv
    table = read(place.folder / f"t.{suffix}")
    target = make_target("vta-pynq")
    assert len(table) == target.space(parse_workload("dense:n=1,c=32,o=32")).size
    assert (table["status"] == "valid").any()
