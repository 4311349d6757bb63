"""Tests the export of tuned schedules as log records of stock AutoTVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.layers import RESNET18
from tests.tune_bare import tune_bare
from tilewright.cli.app import app
from tilewright.core.errors import TilewrightError, WorkloadError
from tilewright.targets.registry import make_target
from tilewright.targets.vta.autotvm import record
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, parse_workload
from tilewright.tuning.export import ExportError, export_schedules

REFERENCE = {
    row["layer"]: row["tophub"]
    for row in json.loads(
        (Path(__file__).parents[1] / "data" / "tvm-vta" / "reference.json").read_text()
    )
}
CONV = "conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1"


def _target(name: str = "vta-pynq") -> VtaTarget:
    target = make_target(name)
    assert isinstance(target, VtaTarget)
    return target


def _record(workload: Workload, knobs: dict[str, int], space: str = "template") -> dict[str, Any]:
    line = record(workload, _target().spec, space, knobs, 0.002, 12.5)
    assert "\n" not in line
    document: dict[str, Any] = json.loads(line)
    return document


def _knobs(record: dict[str, Any]) -> dict[str, int]:
    """Return knob values as AutoTVM applies them: the last factor of a split, or an option."""
    return {
        name: value[-1] if kind == "sp" else value
        for name, kind, value in record["config"]["entity"]
    }


def test_a_record_has_the_form_of_autotvms_logs() -> None:
    workload, _ = RESNET18["C2"]
    assert _record(workload, _target().baseline(workload).space.describe(
        _target().baseline(workload).config
    )) == {
        "input": [
            "ext_dev -keys=vta,cpu -device=vta -model=pynq_1x16_i8w8a32_15_15_18_17",
            "conv2d_packed.vta",
            [
                ["TENSOR", [1, 4, 56, 56, 1, 16], "int8"],
                ["TENSOR", [4, 4, 3, 3, 16, 16], "int8"],
                [1, 1], [1, 1, 1, 1], [1, 1], "NCHW1n16c", "int32",
            ],
            {},
        ],
        "config": {
            "index": 828,
            "code_hash": None,
            "entity": [
                ["tile_b", "sp", [-1, 1]], ["tile_h", "sp", [-1, 8]], ["tile_w", "sp", [-1, 56]],
                ["tile_ci", "sp", [-1, 1]], ["tile_co", "sp", [-1, 2]],
                ["oc_nthread", "ot", 2], ["h_nthread", "ot", 1],
            ],
        },
        "result": [[0.002], 0, 0.002, 12.5],
        "version": 0.2,
        "tvm_version": "0.14.0",
    }  # fmt: skip


@pytest.mark.parametrize("layer", sorted(RESNET18))
def test_published_schedules_keep_their_knobs_and_their_index(layer: str) -> None:
    stock = REFERENCE[layer]
    names = ("tile_b", "tile_h", "tile_w", "tile_ci", "tile_co", "oc_nthread", "h_nthread")
    knobs = {name: stock[name] for name in names}
    result = _record(RESNET18[layer][0], knobs)
    assert _knobs(result) == knobs
    assert [name for name, _, _ in result["config"]["entity"]] == list(names)
    assert result["config"]["index"] == stock["index"]


def test_a_product_has_the_knobs_of_the_stock_dense() -> None:
    knobs = {"tile_b": 4, "tile_h": 1, "tile_w": 1, "tile_ci": 16, "tile_co": 1,
             "oc_nthread": 1, "h_nthread": 1}  # fmt: skip
    result = _record(parse_workload("dense:n=4,c=256,o=128"), knobs)
    name, arguments = result["input"][1:3]
    assert (name, arguments) == (
        "dense_packed.vta",
        [["TENSOR", [4, 16, 1, 16], "int8"], ["TENSOR", [8, 16, 16, 16], "int8"], None, "int32"],
    )
    assert result["config"]["entity"] == [
        ["tile_b", "sp", [-1, 1]], ["tile_ci", "sp", [-1, 16]], ["tile_co", "sp", [-1, 1]],
        ["oc_nthread", "ot", 1],
    ]  # fmt: skip
    assert result["config"]["index"] == 3 * 4  # tile_ci counts after three values of tile_b


@pytest.mark.parametrize(
    ("text", "changed", "space", "cause"),
    [
        (CONV, {}, "extended", "belongs to the space 'extended'"),
        (CONV, {"tile_ci": 2}, "template", "padding on a load of several input blocks"),
        (CONV, {"tile_h": 3}, "template", "do not match its template"),
        (
            "dense:n=1,c=32,o=64",
            {"tile_co": 2},
            "template",
            "only builds with tile_co=1 and oc_nthread=1",
        ),
        (f"{CONV},g=2", {}, "template", "plain convolutions and products"),
        (f"{CONV.replace('p=1', 'p=2')},d=2", {}, "template", "does not support dilation"),
    ],
)
def test_what_the_stock_compiler_cannot_build_is_refused(
    text: str, changed: dict[str, int], space: str, cause: str
) -> None:
    knobs = {"tile_b": 1, "tile_h": 1, "tile_w": 1, "tile_ci": 1, "tile_co": 1,
             "oc_nthread": 1, "h_nthread": 1}  # fmt: skip
    with pytest.raises(WorkloadError, match=cause):
        _record(parse_workload(text), knobs | changed, space)


def test_stock_tvm_knows_no_blocks_that_are_not_square() -> None:
    target = _target()
    other = VtaTarget(target.spec.model_copy(update={"log_block_out": 5}))
    workload = parse_workload("conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1")
    with pytest.raises(WorkloadError, match="blocks of this machine are not square"):
        record(workload, other.spec, "template", {}, 1.0, 0.0)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one workload tuned in the stock compiler's own space."""
    out = tmp_path_factory.mktemp("stock") / "out"
    tune_bare(workload=CONV, space="stock", tuner="random", trials=16, out=str(out))
    return out


def test_exported_schedules_are_those_of_the_folder(tuned: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.log"
    done = CliRunner().invoke(app, ["export", str(tuned), "--format", "autotvm", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "1 record" in done.output
    (line,) = out.read_text().splitlines()
    (row,) = json.loads((tuned / "schedules.json").read_text())["schedules"]
    record = json.loads(line)
    assert _knobs(record) == row["knobs"]
    seconds = row["cycles"] / (_target().spec.clock_mhz * 1e6)
    assert record["result"][:2] == [[pytest.approx(seconds)], 0]


def test_what_is_of_another_space_is_left_out_with_a_sentence(tuned: Path, tmp_path: Path) -> None:
    for name in ("schedules.json", "summary.json"):
        (tmp_path / name).write_text((tuned / name).read_text())
    document = json.loads((tmp_path / "schedules.json").read_text())
    other = document["schedules"][0] | {"space": "extended"}
    document["schedules"].append(other)
    (tmp_path / "schedules.json").write_text(json.dumps(document))
    schedules = export_schedules(tmp_path, "autotvm", 0.0)
    assert schedules.schedules == 1
    (sentence,) = schedules.left_out
    assert CONV in sentence
    assert "extended" in sentence
    document["schedules"] = [other]
    (tmp_path / "schedules.json").write_text(json.dumps(document))
    with pytest.raises(ExportError, match="--space template"):
        export_schedules(tmp_path, "autotvm", 0.0)


def test_a_folder_without_a_run_and_an_unknown_format_are_refused(
    tuned: Path, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match="no finished run"):
        export_schedules(tmp_path, "autotvm", 0.0)
    (tmp_path / "schedules.json").write_text('{"target": 3}')
    with pytest.raises(ExportError, match="tune again"):
        export_schedules(tmp_path, "autotvm", 0.0)
    out = tmp_path / "x.log"
    done = CliRunner().invoke(app, ["export", str(tuned), "--format", "ansor", "--out", str(out)])
    assert isinstance(done.exception, TilewrightError)
    assert "autotvm" in str(done.exception)
    assert not out.exists()
