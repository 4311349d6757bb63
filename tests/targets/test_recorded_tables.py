"""Tests recorded tables of a real stack: read, replayed, and refused when they are invalid."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tilewright.targets.capabilities import Estimates, capability
from tilewright.targets.replay import TableError
from tilewright.targets.vta.recorded_tables import read_stack_table, recorded_target

TABLES = Path(__file__).parents[1] / "data" / "tvm-vta"


def test_the_four_tables_hold_what_was_recorded() -> None:
    facts = {"C4": (1728, 315, 67_258), "C6": (1280, 103, 245_735),
             "C8": (1600, 103, 470_149), "C10": (480, 132, 37_817)}  # fmt: skip
    for name, (rows, valid, best) in facts.items():
        table = read_stack_table(TABLES / f"{name}.csv.gz")
        assert (table.name, len(table), table.optimum.cycles) == (name, rows, best)
        assert (table.status == "valid").sum() == valid
        assert table.space.listed is None


def test_of_an_incomplete_table_the_space_is_what_it_lists(tmp_path: Path) -> None:
    path = _altered(tmp_path, lambda frame: frame.sample(frac=0.4, random_state=1))
    table = read_stack_table(path)
    assert table.space.size == len(table) == 691
    target = recorded_target([path])
    configs = table.space.unravel(np.asarray(table.space.listed))
    measured = target.measure(target.lower(table.workload, configs))
    np.testing.assert_array_equal(measured.cycles, table.cycles)
    missing = table.space.unravel(np.setdiff1d(np.arange(1728), table.flat)[:1])
    with pytest.raises(TableError, match="does not contain every config"):
        target.lower(table.workload, missing)


def test_estimates_are_those_of_the_hardware_also_where_knob_values_are_missing(
    tmp_path: Path,
) -> None:
    whole = recorded_target([TABLES / "C4.csv.gz"])
    part = recorded_target([_altered(tmp_path, lambda frame: frame[frame["tile_h"] != 2])])
    workload = whole.workloads["C4"]
    here, there = part.space(workload), whole.space(workload)
    configs = here.unravel(np.arange(here.size))
    same = np.array(
        [
            [there.knobs[k].values.index(v) for k, v in enumerate(row)]
            for row in here.values(configs)
        ],
        dtype=np.int32,
    )
    estimates = [
        offered.estimate(workload, rows).matrix
        for target, rows in ((part, configs), (whole, same))
        if (offered := capability(target, Estimates)) is not None
    ]
    np.testing.assert_array_equal(*estimates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="tile_h"), "must be a CSV file with the columns"),
        (lambda f: f.assign(status="fine"), "unknown status 'fine'"),
        (lambda f: f.assign(cycles_pynq=""), "contains a valid config without cycles_pynq"),
        (lambda f: f.assign(tile_w="wide"), "is not a table of a VTA stack"),
        (lambda f: f.iloc[:0], "contains no config"),
        (lambda f: pd.concat([f, f.iloc[:1]]), "contains a config twice"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TableError, match=message):
        read_stack_table(_altered(tmp_path, change))


def test_missing_torn_and_doubled_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="does not exist"):
        read_stack_table(tmp_path / "C4.csv.gz")
    path = _altered(tmp_path, lambda frame: frame)
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(TableError, match="is not a table"):
        read_stack_table(path)
    with pytest.raises(TableError, match="same layer"):
        recorded_target([TABLES / "C4.csv.gz", TABLES / "C4.csv.gz"])
    (tmp_path / "reference.json").write_text(json.dumps([{"layer": "C5"}]))
    with pytest.raises(TableError, match="does not describe the layer 'C4'"):
        read_stack_table(_altered(tmp_path, lambda frame: frame, reference=False))


def _altered(folder: Path, change, reference: bool = True) -> Path:  # type: ignore[no-untyped-def]
    frame = pd.read_csv(TABLES / "C4.csv.gz", keep_default_na=False, dtype=str)
    path = folder / "C4.csv.gz"
    path.write_bytes(gzip.compress(_typed(change(_numbers(frame))).encode()))
    if reference:
        (folder / "reference.json").write_bytes((TABLES / "reference.json").read_bytes())
    return path


def _numbers(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(tile_h=frame["tile_h"].astype(int))


def _typed(frame: pd.DataFrame) -> str:
    return str(frame.to_csv(index=False))
