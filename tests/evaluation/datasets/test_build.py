"""Checks the rows of a dataset against the target, and that a stopped build can be resumed."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.evaluation.datasets.plans import OPTIONS, Steps, build, small_plan
from tilewright.core.errors import TilewrightError, UnknownName
from tilewright.evaluation.datasets.build import (
    PlannedFile,
    RowsDone,
    kept_rows,
)
from tilewright.evaluation.datasets.folder import digest_of, read_about, read_table
from tilewright.evaluation.datasets.options import DatasetOptions
from tilewright.evaluation.datasets.plan import (
    DatasetError,
    DatasetPlan,
    PlanPart,
    check_options,
    fit_workload,
    make_plan,
    select_targets,
)
from tilewright.evaluation.datasets.rows import Progress, in_order
from tilewright.models.transfer.columns import columns_of
from tilewright.models.transfer.neural import tokens_of
from tilewright.search import RunInUse
from tilewright.targets.base import STATUSES
from tilewright.targets.registry import make_target, rebuild
from tilewright.targets.vta.spec import VtaSpec


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".owner.sqlite")
    }


def test_a_row_is_what_lowering_and_measuring_its_config_give(dataset: Path) -> None:
    plan = small_plan()
    part = plan.parts[0]
    result = pq.read_table(dataset / plan.path(part), partitioning=None).to_pandas()
    hardware = plan.hardware[0]
    target = rebuild("vta", hardware.specification, hardware.space)
    for place in (0, 1):
        rows = result[result["workload"] == place]
        workload = fit_workload(plan.workload(place), target)
        space = target.space(workload)
        assert rows["config"].is_unique
        lowered = target.lower(workload, space.unravel(rows["config"].to_numpy()))
        measured = target.measure(lowered)
        assert [STATUSES[code] for code in rows["status"]] == list(measured.status)
        assert measured.valid.any()
        cycles = np.where(measured.valid, measured.cycles, 1)
        np.testing.assert_array_equal(
            rows["log_latency"], np.where(measured.valid, np.log2(cycles), np.nan)
        )
        known = columns_of(
            workload, space, lowered.configs, target.hardware_features(), lowered.hidden
        )
        for k, name in enumerate(known.names):
            np.testing.assert_array_equal(rows[name], known.matrix[:, k].astype(np.float32))


def test_a_build_that_is_stopped_goes_on_to_the_same_bytes(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, OPTIONS, Steps(stop=2))
    assert not (tmp_path / "dataset.json").exists()
    assert kept_rows(tmp_path) == 120
    heard: list[PlannedFile | RowsDone] = []
    again = Steps()
    build(tmp_path, OPTIONS, again, heard.append)
    assert again.made == 2
    assert heard[0] == PlannedFile(240, 2, 3, 120)
    assert sum(event.rows for event in heard[1:] if isinstance(event, RowsDone)) == 120
    assert files(tmp_path) == files(dataset)


def test_a_finished_build_is_left_as_it_is_and_mends_what_is_damaged(
    dataset: Path, tmp_path: Path
) -> None:
    build(tmp_path, OPTIONS, Steps())
    unneeded = Steps(stop=0)
    build(tmp_path, OPTIONS, unneeded)
    path = tmp_path / small_plan().path(small_plan().parts[3])
    path.write_bytes(path.read_bytes()[:-100])
    mending = Steps()
    build(tmp_path, OPTIONS, mending)
    assert mending.made == 1
    assert files(tmp_path) == files(dataset)


def test_other_options_do_not_touch_a_dataset(dataset: Path) -> None:
    before = files(dataset)
    with pytest.raises(DatasetError, match="other options"):
        build(dataset, OPTIONS.model_copy(update={"seed": 6}), Steps())
    assert files(dataset) == before


def test_a_dataset_from_elsewhere_is_not_built_over(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_bytes((dataset / "dataset.json").read_bytes())
    with pytest.raises(DatasetError, match="built elsewhere"):
        build(tmp_path, OPTIONS, Steps())


def test_of_two_builds_into_a_folder_one_is_told(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Waiting(Steps):
        def plan(self, options: DatasetOptions) -> DatasetPlan:
            begun.set()
            assert go_on.wait(60)
            return super().plan(options)

    first = threading.Thread(target=build, args=(tmp_path, OPTIONS, Waiting()))
    first.start()
    try:
        assert begun.wait(60)
        with pytest.raises(RunInUse, match="in use by process"):
            build(tmp_path, OPTIONS, Steps())
    finally:
        go_on.set()
        first.join()
    assert (tmp_path / "dataset.json").exists()


def test_hardware_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    class Changed(Steps):
        def plan(self, options: DatasetOptions) -> DatasetPlan:
            plan = small_plan(options)
            return replace(
                plan, hardware=tuple(replace(device, id="f" * 16) for device in plan.hardware[:1])
                + plan.hardware[1:],
            )  # fmt: skip

    with pytest.raises(DatasetError, match="has changed since"):
        build(tmp_path, OPTIONS, Changed())


@pytest.mark.parametrize("text", [b"", b"{}", b"[" * 100_000, b'{"parts": 3}', b"\xff"])
def test_a_strange_plan_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(text)
    with pytest.raises(DatasetError, match="another folder"):
        build(tmp_path, OPTIONS, Steps())


def test_the_digest_changes_with_the_seed(dataset: Path, tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"seed": 6})
    build(tmp_path, options, Steps())
    assert digest_of(tmp_path) != digest_of(dataset)
    ours, theirs = read_table(tmp_path), read_table(dataset)
    assert len(ours) == len(theirs) == 240
    assert not np.array_equal(ours.features.matrix, theirs.features.matrix, equal_nan=True)


NAMED = DatasetOptions(rows=64, cpu_rows=0, workloads=3, targets=("vta-de10", "vta-pynq"))


@pytest.mark.nightly(seconds=15)
def test_named_hardware_is_what_a_build_is_of(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    about = build(one, NAMED)
    assert [device.name for device in about.hardware] == list(NAMED.targets)
    assert [device.id for device in about.hardware] == [
        make_target(name).fingerprint for name in NAMED.targets
    ]
    assert about.rows == len(read_table(one)) == 64
    assert tuple(about.made["options"]["targets"]) == NAMED.targets

    class Stopped(Steps):
        def plan(self, options: DatasetOptions) -> DatasetPlan:
            return make_plan(options)

        def part(self, plan: DatasetPlan, part: PlanPart, tell: Progress) -> bytes:
            if part.hardware == 1:
                raise KeyboardInterrupt
            return super().part(plan, part, tell)

    with pytest.raises(KeyboardInterrupt):
        build(other, NAMED, Stopped())
    assert kept_rows(other) == 32
    build(other, NAMED)
    assert files(other) == files(one)
    with pytest.raises(DatasetError, match=r"other options .*vta-pynq"):
        build(one, replace(NAMED, targets=("vta-de10",)))


def test_a_file_that_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    spec = tmp_path / "mine.json"
    spec.write_text(VtaSpec(name="mine").model_dump_json(by_alias=True, exclude={"source"}))
    options = OPTIONS.model_copy(update={"targets": (str(spec),)})
    (result,) = select_targets(options.targets, "vta")

    class Named(Steps):
        def plan(self, options: DatasetOptions) -> DatasetPlan:
            plan = small_plan(options)
            parts = tuple(part for part in plan.parts if part.hardware == 0)
            return replace(plan, hardware=(result[0],), parts=parts)

    build(tmp_path / "data", options, Named())
    build(tmp_path / "data", options, Named(stop=0))
    changed = VtaSpec(name="mine", memory_latency_cycles=200)
    spec.write_text(changed.model_dump_json(by_alias=True, exclude={"source"}))
    with pytest.raises(DatasetError, match="has changed since"):
        build(tmp_path / "data", options, Named())


@pytest.mark.parametrize(
    ("targets", "error", "hint"),
    [
        (("vta-deten",), UnknownName, "vta-de10"),
        (("replay:table.csv",), DatasetError, "kind replay.* vta or gemmini or cpu"),
        (("nowhere.json",), TilewrightError, "nowhere"),
        (("cpu:threads=1",), DatasetError, "--cpu-rows"),
    ],
)
def test_hardware_that_no_rows_can_be_of_is_said(
    targets: tuple[str, ...], error: type[TilewrightError], hint: str
) -> None:
    with pytest.raises(error, match=hint):
        check_options(DatasetOptions(rows=64, cpu_rows=0, targets=targets))


def test_one_piece_of_hardware_is_named_once(tmp_path: Path) -> None:
    twin = tmp_path / "twin.json"
    twin.write_text(VtaSpec.load("vta-de10").model_dump_json(by_alias=True, exclude={"source"}))
    with pytest.raises(DatasetError, match="same hardware as vta-de10"):
        select_targets(("vta-de10", str(twin)), "vta")


def test_a_plan_of_before_hardware_could_be_named_has_the_digest_that_its_files_know() -> None:
    """With another digest, a build begun by an earlier version would start again."""
    kept = Path(__file__).parents[2] / "data" / "transfer" / "slice"
    plan = DatasetPlan.from_json((kept / "plan.json").read_bytes())
    assert plan.options.targets == ()
    assert plan.digest == read_about(kept).made["plan"]


def test_columns_of_schedules_stand_in_the_order_of_a_spaces_decisions(dataset: Path) -> None:
    plan = small_plan()
    tokens = tokens_of([column.name for column in read_about(dataset).columns]).knobs
    hardware = plan.hardware[0]
    target = rebuild("vta", hardware.specification, hardware.space)
    knobs = [knob.name for knob in target.space(fit_workload(plan.workload(0), target)).knobs]
    assert [name for name in tokens if name in knobs] == knobs
    assert knobs != sorted(knobs)


def test_orders_are_merged() -> None:
    assert in_order([("a", "c"), ("b", "c", "d"), ("c", "a", "e")]) == ["b", "a", "e", "c", "d"]
    assert in_order([("z", "a"), ("z", "b", "a")]) == ["z", "b", "a"]
