"""Builds a dataset with two accelerator families and trains a model on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.datasets.plans import Steps, build
from tilewright.evaluation.datasets.folder import read_table
from tilewright.evaluation.datasets.options import DatasetOptions
from tilewright.evaluation.datasets.plan import (
    DatasetPlan,
    PlanCell,
    PlanPart,
    check_options,
    draw_hardware,
    fit_workload,
    select_targets,
)
from tilewright.models.transfer.registry import make_model
from tilewright.targets import make_target
from tilewright.targets.workload import parse_workload

NAMES = ("vta-de10", "gemmini")
OPTIONS = DatasetOptions(rows=64, cpu_rows=0, workloads=2, targets=NAMES)
LAYERS = ("dense:n=16,c=64,o=64", "conv2d:n=1,c=32,h=7,w=7,o=32,k=3,s=1,p=1")


class _Small(Steps):
    """Steps that build two small layers on the named machines."""

    def plan(self, options: DatasetOptions) -> DatasetPlan:
        hardware = [one for kind in ("vta", "gemmini") for one, _ in select_targets(NAMES, kind)]
        works = [parse_workload(text, "bias, + 3, >> 8, min 127, max 0") for text in LAYERS]
        cells = tuple(PlanCell(place, 16) for place in range(2))
        return DatasetPlan(
            options, "0", tuple(hardware), tuple(w.to_json() for w in works),
            tuple(PlanPart(place, 0, cells) for place in range(2)),
        )  # fmt: skip


@pytest.mark.slow(seconds=8)
def test_rows_of_two_families_are_one_dataset_that_models_learn_from(tmp_path: Path) -> None:
    check_options(OPTIONS)
    about = build(tmp_path, OPTIONS, _Small())
    assert [(device.kind, device.unit) for device in about.hardware] == [
        ("vta", "cycles"), ("gemmini", "cycles"),
    ]  # fmt: skip
    table = read_table(tmp_path)
    assert len(table) == 64
    for machine in range(2):
        assert table.valid[table.hardware == machine].sum() >= 8
    names = list(table.features.names)
    fed = table.features.matrix[:, names.index("program fed_cycles")]
    assert np.isfinite(fed[(table.hardware == 1) & table.valid]).all()
    assert np.isnan(fed[table.hardware == 0]).all(), "a count that only one family has"
    model = make_model("xgboost", 0, {"minutes": 0.1})
    model.fit(table.rows(table.hardware == 0))
    assert np.isfinite(model.predict(table.rows(table.hardware == 1).features).log_latency).all()


def test_layers_are_rounded_as_a_machine_rounds() -> None:
    workload = parse_workload(LAYERS[0], "bias, >> 8, min 127, max 0")
    steps = [fit_workload(workload, make_target(name)).epilogue_text for name in NAMES]
    assert [">> even 8" in text for text in steps] == [False, True]


def test_drawn_machines_differ_and_the_first_stay() -> None:
    few, more = (draw_hardware("gemmini", count, 3) for count in (3, 8))
    assert [one.id for one, _ in few] == [one.id for one, _ in more[:3]]
    assert len({one.id for one, _ in more}) == 8
    assert make_target("gemmini").fingerprint not in {one.id for one, _ in more}
