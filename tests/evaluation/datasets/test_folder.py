"""Tests reading all or part of a dataset, and refusing damaged or foreign files."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.evaluation.datasets.plans import small_plan
from tilewright.core.errors import TilewrightError, UnknownName
from tilewright.core.files import digest
from tilewright.evaluation.datasets.folder import read_about, read_table
from tilewright.evaluation.datasets.plan import DatasetError

SLICE = Path(__file__).parents[2] / "data" / "transfer" / "slice"
PLAN = small_plan()
FIRST = PLAN.path(PLAN.parts[0])


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset, tmp_path / "copy"))


def rewrite(folder: Path, change: Callable[[Any], Any]) -> None:
    """Change the content of `dataset.json`."""
    about = json.loads((folder / "dataset.json").read_bytes())
    (folder / "dataset.json").write_text(json.dumps(change(about) or about))


def replace_file(folder: Path, data: bytes, rows: int | None = None) -> None:
    """Replace the first data file, and its size and digest in `dataset.json`."""
    (folder / FIRST).write_bytes(data)

    def vouch(about: Any) -> None:
        record = next(file for file in about["files"] if file["path"] == FIRST)
        record |= {"bytes": len(data), "sha256": digest(data)}
        if rows is not None:
            about["rows"] += rows - record["rows"]
            record["rows"] = rows

    rewrite(folder, vouch)


def parquet(table: pa.Table, **how: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **how)
    return buffer.getvalue()


def test_the_whole_table_is_numbered_as_it_is_listed(dataset: Path) -> None:
    table = read_table(dataset)
    assert len(table) == 240
    assert np.array_equal(np.unique(table.hardware), [0, 1])
    assert np.array_equal(np.unique(table.workload), [0, 1, 2])
    assert np.array_equal(table.task, table.hardware * 3 + table.workload)
    assert 0 < table.valid.sum() < 240
    compiled = [k for k, name in enumerate(table.features.names) if name.startswith("program ")]
    missing = np.isnan(table.features.matrix[:, compiled]).all(axis=1)
    assert 0 < missing.sum() <= (~table.valid).sum()
    always = [k for k, name in enumerate(table.features.names) if name.startswith("hardware ")]
    assert np.isfinite(table.features.matrix[:, always]).all()


def test_a_part_has_the_numbers_and_columns_of_the_whole(dataset: Path) -> None:
    whole = read_table(dataset)
    name, workload = PLAN.hardware[1].name, PLAN.workload(2).id
    part = read_table(dataset, hardware=[name], workloads=[workload])
    same = whole.rows((whole.hardware == 1) & (whole.workload == 2))
    assert len(part) == 40
    assert part.features.names == whole.features.names
    np.testing.assert_array_equal(part.features.matrix, same.features.matrix)
    np.testing.assert_array_equal(part.log_latency, same.log_latency)
    np.testing.assert_array_equal(part.task, same.task)
    assert len(read_table(dataset, hardware=[PLAN.hardware[1].id])) == 120


def test_some_rows_are_drawn_by_seed(dataset: Path) -> None:
    whole = read_table(dataset)
    some = [read_table(dataset, rows=50, seed=seed) for seed in (0, 0, 1)]
    assert [len(item) for item in some] == [50, 50, 50]
    np.testing.assert_array_equal(some[0].features.matrix, some[1].features.matrix)
    assert not np.array_equal(some[0].features.matrix, some[2].features.matrix, equal_nan=True)
    rows = {row.tobytes() for row in whole.features.matrix}
    assert {row.tobytes() for row in some[0].features.matrix} <= rows
    assert len(read_table(dataset, rows=1000)) == 240


def test_workloads_that_differ_in_epilogue_alone_are_one_group(copy: Path) -> None:
    def make_alike(about: Any) -> None:
        about["workloads"][1] = about["workloads"][0] | {"epilogue": []}

    rewrite(copy, make_alike)
    table = read_table(copy)
    assert np.array_equal(np.unique(table.workload), [0, 2])
    assert len(np.unique(table.task)) == 6


def test_unknown_names_are_refused_with_what_is_known(dataset: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean"):
        read_table(dataset, hardware=[PLAN.hardware[0].name + "x"])
    with pytest.raises(UnknownName, match="workload"):
        read_table(dataset, workloads=["conv"])


def test_rows_may_come_from_elsewhere(tmp_path: Path) -> None:
    """The file follows docs/reference/dataset.md and is written without code of this project."""
    table = pa.table(
        {
            "workload": pa.array([0, 0, 0], pa.int32()),
            "status": pa.array([0, 0, 1], pa.int8()),
            "log_latency": pa.array([10.0, 11.0, None], pa.float64()),
            "hardware lanes": pa.array([3.0, 3.0, None], pa.float32()),
        }
    )
    data = parquet(table)
    path = tmp_path / "rows" / "hardware=mine" / "a.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    about = {
        "format": "tilewright dataset", "version": 1, "rows": 3,
        "statuses": ["valid", "run_error"],
        "hardware": [{"id": "mine", "name": "m", "kind": "k", "fingerprint": "", "unit": "cycles"}],
        "workloads": [PLAN.workload(0).to_json()],
        "columns": [{"name": "hardware lanes"}, {"name": "hardware none"}],
        "files": [{"path": "rows/hardware=mine/a.parquet", "hardware": "mine", "rows": 3,
                   "bytes": len(data), "sha256": digest(data)}],
    }  # fmt: skip
    (tmp_path / "dataset.json").write_text(json.dumps(about))
    result = read_table(tmp_path)
    np.testing.assert_array_equal(result.log_latency, [10, 11, np.nan])
    np.testing.assert_array_equal(
        result.features.matrix, [[3, np.nan], [3, np.nan], [np.nan, np.nan]]
    )


# -- files that are not datasets ---------------------------------------------------------------


def test_a_folder_without_a_finished_dataset_says_how_to_finish_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="tilewright dataset build --out"):
        read_table(tmp_path)


def _set(**values: Any) -> Callable[[Any], Any]:
    return lambda about: about | values


def _file(**values: Any) -> Callable[[Any], Any]:
    def change(about: Any) -> None:
        about["files"][0] |= values

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda about: ["no object"], "does not describe a dataset"),
        (_set(format="other"), "does not describe a dataset"),
        (_set(version=2), "version 2"),
        (_set(rows=7), "its number of rows does not match"),
        (_set(hardware=[]), "not listed"),
        (_set(columns=[{"name": "x"}, {"name": "x"}]), "twice"),
        (_set(columns=[]), "is not listed"),
        (_set(workloads=[]), "not listed"),
        (_set(workloads=[{"operator": "conv2d"}]), "does not describe a dataset"),
        (_set(statuses=["fine"]), "statuses"),
        (_set(files=3), "files"),
        (_file(path="../../etc/passwd"), "files must be called"),
        (_file(path="rows/hardware=../part.parquet"), "files must be called"),
        (_file(path="rows/hardware=a/part-0000.parquet"), "is missing|No such"),
        (_file(rows=-40), "negative|its rows"),
        (_file(sha256="0" * 64), "damaged"),
        (_file(bytes=10), "larger than"),
    ],
)
def test_a_strange_description_is_refused(
    copy: Path, change: Callable[[Any], Any], says: str
) -> None:
    rewrite(copy, change)
    with pytest.raises((TilewrightError, FileNotFoundError), match=says):
        read_table(copy)


@pytest.mark.attack
def test_a_few_bytes_do_not_ask_for_a_large_table(copy: Path) -> None:
    """Four million rows of equal values are small on disk, but 4,096 columns are 64 GiB."""
    rows = 1 << 22
    table = pa.table(
        {
            "workload": pa.array(np.zeros(rows, np.int32)),
            "status": pa.array(np.ones(rows, np.int8)),
            "log_latency": pa.array(np.full(rows, np.nan), from_pandas=True),
        }
    )
    data = parquet(table, compression="zstd")
    assert len(data) < 1 << 16
    replace_file(copy, data, rows)
    more = [{"name": f"c{k}"} for k in range(3900)]
    rewrite(copy, lambda about: about | {"columns": about["columns"] + more})
    with pytest.raises(DatasetError, match=r"needs a table of 6[0-9.]* GiB"):
        read_table(copy)
    rewrite(copy, lambda about: about | {"rows": about["rows"] + 10 * rows, "files": [
        *about["files"], *({**about["files"][0], "path": f"rows/hardware=a/{k}.parquet"}
                           for k in range(10))]})  # fmt: skip
    with pytest.raises(DatasetError, match="more rows than its files can hold"):
        read_table(copy)


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 200_000, b"\xff\xfe", b"null"])
def test_a_description_that_is_no_json_is_refused(copy: Path, text: bytes) -> None:
    (copy / "dataset.json").write_bytes(text)
    with pytest.raises(DatasetError, match="does not describe a dataset"):
        read_table(copy)


def test_damage_is_found_by_the_digest(copy: Path) -> None:
    data = bytearray((copy / FIRST).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / FIRST).write_bytes(data)
    with pytest.raises(DatasetError, match="damaged"):
        read_table(copy)


def _changed(copy: Path, change: Callable[[pa.Table], pa.Table]) -> bytes:
    return parquet(change(pq.read_table(copy / FIRST, partitioning=None)))


def _with(name: str, values: Callable[[pa.Table], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.schema.names.index(name), name, values(table))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: table.drop_columns(["status"]), "lacks the column status"),
        (lambda table: table.slice(0, 5), "it has 5 rows"),
        (lambda table: table.append_column("x", table["status"]), "is not listed"),
        (_with("workload", lambda t: pa.array([3] * len(t), pa.int32())), "not listed"),
        (_with("workload", lambda t: pa.array([-1] * len(t), pa.int32())), "not listed"),
        (_with("workload", lambda t: pa.array([None] * len(t), pa.int32())), "has missing values"),
        (_with("workload", lambda t: pa.array(["0"] * len(t))), "type int32"),
        (_with("log_latency", lambda t: pa.array([1.0] * len(t))), "exactly in the valid"),
        (_with("log_latency", lambda t: pa.array([float("inf")] * len(t))), "exactly in the valid"),
        (
            _with("hardware batch", lambda t: pa.array([float("inf")] * len(t), pa.float32())),
            "infinite",
        ),
        (_with("hardware batch", lambda t: pa.array([1e300] * len(t))), "infinite"),
        (_with("hardware batch", lambda t: pa.array([[1.0]] * len(t))), "instead of float32"),
        (_with("workload", lambda t: pa.array([1 << 40] * len(t))), "cannot be read"),
    ],
)
def test_a_strange_file_is_refused(
    copy: Path, change: Callable[[pa.Table], pa.Table], says: str
) -> None:
    replace_file(copy, _changed(copy, change))
    with pytest.raises(DatasetError, match=says):
        read_table(copy)


def test_numbers_of_other_widths_are_read_as_they_are_meant(copy: Path) -> None:
    """The columns have the data types that pandas writes."""
    before = read_table(copy)
    replace_file(copy, _changed(copy, _widened))
    after = read_table(copy)
    for name in ("log_latency", "task", "workload", "hardware"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    np.testing.assert_array_equal(after.features.matrix, before.features.matrix)


def _widened(table: pa.Table) -> pa.Table:
    wide = {pa.int32(): pa.int64(), pa.int8(): pa.int64(), pa.float32(): pa.float64()}
    fields = [(item.name, wide.get(item.type, item.type)) for item in table.schema]
    return table.cast(pa.schema(fields))


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.slow(seconds=3)
def test_bytes_that_are_vouched_for_are_read_or_refused(dataset: Path, data: st.DataObject) -> None:
    """Damaged bytes with a correct digest give a table or a typed error."""
    from tilewright.evaluation.datasets.rows import Reader

    about = read_about(dataset)
    intact = (dataset / FIRST).read_bytes()
    hostile = bytearray(intact)
    for _ in range(data.draw(st.integers(1, 8))):
        # The footer with lengths and offsets is in the last few kilobytes.
        near_the_end = data.draw(st.booleans())
        first = max(0, len(hostile) - 20_000) if near_the_end else 0
        hostile[data.draw(st.integers(first, len(hostile) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(hostile))))
    try:
        reader = Reader(bytes(hostile[:cut]), 80, about.columns)
        reader.workloads(3)
        reader.log_latency(0)
        into = np.full((80, len(about.columns)), np.nan, np.float32)
        reader.features(np.arange(80), into)
    except ValueError:
        return
    assert len(into) == 80


def test_the_slice_that_ships_is_of_different_hardware() -> None:
    table = read_table(SLICE)
    assert len(table) == 1216
    kinds = Counter(device.kind for device in read_about(SLICE).hardware)
    assert kinds == {"vta": 4, "cpu": 4}
    of = {name: table.features.matrix[:, k] for k, name in enumerate(table.features.names)}
    on_cpu = np.isfinite(of["hardware lanes"])
    assert on_cpu.sum() == 16
    assert np.isnan(of["hardware block_in"][on_cpu]).all()
    assert np.isfinite(of["hardware block_in"][~on_cpu]).all()
    size = sum(path.stat().st_size for path in SLICE.rglob("*") if path.is_file())
    assert size < 500_000
