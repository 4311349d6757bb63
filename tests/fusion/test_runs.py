"""Tests `tilewright tune --fusion` and the artifacts that are built from its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.conftest import Place
from tests.fusion.nets import write
from tests.trial_tables import frame, tables
from tests.tune_bare import tune_options
from tilewright import tuning
from tilewright.core.files import Json
from tilewright.core.options import OptionsError
from tilewright.flows.build import build_artifact
from tilewright.fusion.decision import preview
from tilewright.networks import artifact
from tilewright.reports.fusion import fusion_page
from tilewright.search import LocalRunner
from tilewright.targets.registry import make_target
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.events import Event, Note, WorkloadsAdded
from tilewright.tuning.fusion_interface import FusionDecision, FusionSummary
from tilewright.tuning.preflight import check
from tilewright.tuning.schedule_lookup import PickError

RUN: dict[str, Any] = {"target": "vta-pynq", "tuner": "random", "trials": 4, "batch": 4}
MODES = ("none", "all", "greedy", "learned")


def tuned(model: Path, out: Path, mode: str, heard: list[Event] | None = None) -> dict[str, Any]:
    options = tuning.TuningOptions.parse(model=str(model), out=str(out), fusion=mode, **RUN)
    emit = (heard if heard is not None else []).append
    return dict(tune_options(options, emit))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one run of the network per fusion mode."""
    place = tmp_path_factory.mktemp("fusion")
    model = write(place)
    for mode in MODES:
        tuned(model, place / mode, mode)
    return place


pytestmark = pytest.mark.slow(seconds=1)


def test_the_summary_says_what_was_decided_and_what_it_takes(folders: Path) -> None:
    said = {mode: json.loads((folders / mode / "summary.json").read_text()) for mode in MODES}
    for mode, summary in said.items():
        fusion = summary["fusion"]
        assert list(fusion) == [
            "mode", "decisions", "cycles", "dram_bytes", "evaluations", "tuned"
        ]  # fmt: skip
        assert fusion["mode"] == mode
        assert mode in fusion["cycles"]
        assert fusion["cycles"].keys() == fusion["dram_bytes"].keys()
        assert fusion["evaluations"] >= 1
        names = [row["name"] for row in fusion["decisions"]]
        assert len(names) == len(set(names)) == 8
    learned = said["learned"]["fusion"]
    assert set(learned["cycles"]) == set(MODES)
    assert learned["cycles"]["learned"] == min(learned["cycles"].values())
    for mode in MODES[:3]:  # equal schedules take equal cycles
        assert said[mode]["fusion"]["cycles"][mode] == learned["cycles"][mode]
    assert not any(row["fused"] for row in said["none"]["fusion"]["decisions"])
    assert all(row["fused"] for row in said["all"]["fusion"]["decisions"])
    gains = [row["cycles_saved"] for row in learned["decisions"] if row["fused"]]
    assert all(gain is not None for gain in gains)
    tuned_gains = [row["cycles_saved"] for row in learned["decisions"] if not row["estimated"]]
    assert all(gain >= 0 for gain in tuned_gains)


@pytest.mark.parametrize("mode", ["none", "all", "greedy"])
def test_what_is_not_tuned_is_estimated_and_tunes_nothing(folders: Path, mode: str) -> None:
    """The saving of every label is known without trials.

    An untuned alternative uses the schedules of lowest estimated cost on both sides.
    """
    summary = json.loads((folders / mode / "summary.json").read_text())["fusion"]
    rows = summary["decisions"]
    assert all(row["cycles_saved"] is not None for row in rows)
    guessed = [row for row in rows if row["estimated"]]
    assert guessed or mode == "none"
    options = tuning.TuningOptions.parse(model=str(folders / "pooled.onnx"), fusion=mode, **RUN)
    previewed = preview(options, make_target("vta-pynq"), "pooled").summary["decisions"]
    if mode != "none":  # the estimates favour fusing everything
        assert guessed == [
            item for item in previewed if item["name"] in {r["name"] for r in guessed}
        ]
    page = (folders / mode / "fusion.json").read_text()
    drawn = fusion_page("pooled", "vta-pynq", summary, json.loads(page)).decode()
    assert drawn.count("≈ ") == len(guessed) + bool(guessed)  # once more in the legend
    usual = json.loads((folders / mode / "summary.json").read_text())["workloads"]
    assert frame(folders / mode)["workload"].nunique() == len(usual) + summary["tuned"]


@pytest.mark.parametrize("mode", ["none", "learned"])
def test_the_page_draws_all_layers_and_whose_results_they_read(folders: Path, mode: str) -> None:
    file = json.loads((folders / mode / "fusion.json").read_text())
    said = json.loads((folders / mode / "summary.json").read_text())["fusion"]
    rows = file["layers"]
    matching = {row["name"]: k for k, row in enumerate(rows)}
    assert rows[0]["reads"] == []
    assert all(read < k for k, row in enumerate(rows) for read in row["reads"])
    shortcut = matching["stem"] if mode == "learned" else matching["pool"]
    inner = matching["a"] if mode == "learned" else matching["a.activation"]
    assert rows[matching["b"]]["reads"] == [shortcut, inner]
    shown = sorted(place for row in rows for place in row["labels"])
    assert shown == list(range(len(said["decisions"])))
    page = fusion_page("pooled", "vta-pynq", said, file).decode()
    assert page.count('<div class="layer">') == len(rows)
    assert page.count("<path ") == sum(len(row["reads"]) for row in rows)
    fused = sum(row["fused"] for row in said["decisions"])
    assert page.count('class="chip fused"') == fused
    assert page.count('class="chip"') == len(said["decisions"]) - fused
    assert "saves" in page or not fused


@pytest.mark.parametrize("mode", MODES)
def test_what_is_built_is_what_was_decided_and_computes_the_same(
    folders: Path, mode: str, tmp_path: Path
) -> None:
    options = BuildOptions(
        model=str(folders / "pooled.onnx"), out=tmp_path / "art", schedules=folders / mode
    )
    built = build_artifact(LocalRunner(), options)
    summary = json.loads((folders / mode / "summary.json").read_text())
    assert built.manifest["cycles"]["stream"] == summary["fusion"]["cycles"][mode]  # type: ignore[index, call-overload]
    loaded = artifact.load(tmp_path / "art", allow_code=True)
    assert [item.wrong for item in loaded.verify()] == [0] * len(built.manifest["layers"])  # type: ignore[arg-type]
    x = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)
    (ours,) = loaded.infer({"input": x}).values()
    plain = BuildOptions(model=str(folders / "pooled.onnx"), out=tmp_path / "plain", trials=0)
    build_artifact(LocalRunner(), plain)
    (theirs,) = artifact.load(tmp_path / "plain", allow_code=True).infer({"input": x}).values()
    np.testing.assert_array_equal(ours, theirs)


def test_shortcuts_are_tuned_and_built_with_the_layers_they_are_in(tmp_path: Path) -> None:
    model = write(tmp_path, "projecting")
    tuned(model, tmp_path / "out", "all")
    held = json.loads((tmp_path / "out" / "fusion.json").read_text())
    summed = [row for row in held["schedules"] if "|" in row["epilogue"]]
    assert [row["names"] for row in summed] == [["one.b"], ["two.b"]]
    said = json.loads((tmp_path / "out" / "summary.json").read_text())["fusion"]
    assert "beside" in fusion_page("projecting", "vta-pynq", said, held).decode()
    sides = []
    for name, folder in (("all", tmp_path / "out"), ("plain", None)):
        build_artifact(
            LocalRunner(),
            BuildOptions(model=str(model), out=tmp_path / name, schedules=folder, trials=0),
        )
        loaded = artifact.load(tmp_path / name, allow_code=True)
        assert not any(item.wrong for item in loaded.verify())
        x = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)
        sides.append(next(iter(loaded.infer({"input": x}).values())))
    np.testing.assert_array_equal(*sides)
    layers = json.loads((tmp_path / "all" / "manifest.json").read_text())["layers"]
    assert [row["name"] for row in layers if row["shortcut"] is not None] == ["one.b", "two.b"]


def test_a_repeated_run_makes_no_trial_and_says_the_same(folders: Path, tmp_path: Path) -> None:
    model, out = write(tmp_path), tmp_path / "out"
    heard: list[Event] = []
    first = tuned(model, out, "learned", heard)
    assert (
        sum(len(event.workloads) for event in heard if isinstance(event, WorkloadsAdded))
        == (first["fusion"]["tuned"])
    )
    fusion, stored = (out / "fusion.json").read_bytes(), tables(out)
    again = tuned(model, out, "learned")
    assert again["fusion"] == first["fusion"]
    assert ((out / "fusion.json").read_bytes(), tables(out)) == (fusion, stored)
    assert fusion == (folders / "learned" / "fusion.json").read_bytes()


def test_a_run_that_was_cut_off_goes_on(folders: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    model, out, many = write(tmp_path), tmp_path / "out", 0

    def cut(event: Event) -> None:
        nonlocal many
        many += isinstance(event, WorkloadsAdded)
        if many and type(event).__name__ == "WorkloadTuned":
            raise Stop

    options = tuning.TuningOptions.parse(model=str(model), out=str(out), fusion="learned", **RUN)
    with pytest.raises(Stop):
        tune_options(options, cut)
    assert not (out / "fusion.json").exists()
    trials = len(frame(out))
    tuned(model, out, "learned")
    assert tables(out) == tables(folders / "learned")
    assert 0 < trials < len(frame(out))


def test_without_the_option_everything_is_as_before(folders: Path, tmp_path: Path) -> None:
    model, out = write(tmp_path), tmp_path / "out"
    options = tuning.TuningOptions.parse(model=str(model), out=str(out), **RUN)
    summary = tune_options(options)
    assert "fusion" not in summary
    stored = tables(out)["trials"]
    assert tables(folders / "learned")["trials"][: len(stored)] == stored
    for name in ("schedules.json", "trials.parquet"):
        assert (out / name).read_bytes() == (folders / "learned" / name).read_bytes()
    tuned(model, out, "all")
    assert (out / "fusion.json").exists()
    tune_options(options)
    assert not (out / "fusion.json").exists()


def test_a_network_without_decisions_says_so(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.full((16, 16, 1, 1), 0.1, np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 4, 4]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "g", [x], [y], [weight]
    )
    onnx.save(
        helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)]),
        tmp_path / "one.onnx",
    )
    heard: list[Event] = []
    said = tuned(tmp_path / "one.onnx", tmp_path / "out", "learned", heard)["fusion"]
    assert said["decisions"] == []
    assert len(set(said["cycles"].values())) == 1
    notes = [event.text for event in heard if isinstance(event, Note)]
    assert any("there is nothing to fuse in this network" in text for text in notes)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workload": "dense:n=1,c=16,o=16", "fusion": "all"}, "--fusion all --workload"),
        ({"model": "resnet18", "layers": ("conv1",), "fusion": "all"}, "--fusion all --layers"),
        ({"model": "resnet18", "epilogue": "plain", "fusion": "none"}, "--epilogue plain"),
        ({"model": "resnet18", "fusion": "some"}, "--fusion some"),
    ],
)
def test_options_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        tuning.TuningOptions.parse(**values)


def test_a_target_that_builds_nothing_is_refused_before_any_work(tmp_path: Path) -> None:
    options = tuning.TuningOptions.parse(
        model="digits_cnn", target="cpu", fusion="all", out=str(tmp_path / "out")
    )
    with pytest.raises(OptionsError, match="nothing to fuse; choose a VTA, or leave out --fusion"):
        check(options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: held["labels"].append({"name": "pool x", "kind": "pool", "fused": True}),
         "fuses 'pool x', which this network does not contain"),
        (lambda held: held.pop("labels"), "does not contain the fusion decisions"),
        (lambda held: held["schedules"].clear(), "lacks"),
        (
            lambda held: held["labels"][0].update(fused="yes"),
            "does not contain the fusion decisions",
        ),
        (lambda held: held["target"]["spec"].update(bus_bits=128), "another machine"),
    ],
)  # fmt: skip
def test_a_changed_file_is_refused(
    folders: Path, tmp_path: Path, change: Any, message: str
) -> None:
    held = json.loads((folders / "all" / "fusion.json").read_text())
    change(held)
    (tmp_path / "fusion.json").write_text(json.dumps(held))
    options = BuildOptions(
        model=str(folders / "pooled.onnx"), out=tmp_path / "art", schedules=tmp_path
    )
    with pytest.raises(PickError, match=message):
        build_artifact(LocalRunner(), options)


@pytest.mark.nightly(seconds=31)
def test_a_tracked_run_equals_a_bare_one_and_goes_on_from_its_cache(
    folders: Path, guest: Place
) -> None:
    write(guest.folder)
    words = ("tune", "pooled.onnx", "--tuner", "random", "--trials", "4", "--batch", "4", "--out",
             "out", "--fusion", "learned")  # fmt: skip
    for turn in range(2):
        done = guest.run(*words)
        assert done.returncode == 0, done.stderr
        assert "of 8 decisions fused, learned: the whole network takes" in done.stdout
        held = "trials of this network's own workloads and" in " ".join(done.stdout.split())
        assert held == (turn == 1)
        left = (guest.folder / "out" / "fusion.json").read_bytes()
        assert left == (folders / "learned" / "fusion.json").read_bytes()
        bare = json.loads((folders / "learned" / "summary.json").read_text())
        summary = guest.json("out/summary.json")
        assert summary["fusion"] == bare["fusion"]
        _check_mlflow(guest.folder, summary, begun=turn == 0)


def _check_mlflow(place: Path, summary: dict[str, Any], begun: bool) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{place}/home/mlflow/mlflow.db")
    run = client.get_run(summary["mlflow_run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["fusion"] == "learned"
    cycles = summary["fusion"]["cycles"]["learned"]
    assert run.data.metrics["fusion/learned_cycles"] == cycles
    if begun:
        best = client.get_metric_history(run.info.run_id, "fusion/best_cycles")
        assert best[-1].value == cycles
        assert best[0].step == 1


def test_inspect_draws_what_would_run_together(place: Place) -> None:
    model = write(place.folder)
    done = place.run("inspect", str(model), "--fusion", "drawn.html")
    assert done.returncode == 0, done.stderr
    page = (place.folder / "drawn.html").read_text()
    assert "wrote drawn.html: by estimates, 8 of 8 decisions fuse" in " ".join(done.stdout.split())
    assert page.count('class="chip fused"') == 8
    assert "not known" not in page  # estimates give every saving


def test_inspect_says_it_as_json_too(place: Place) -> None:
    model = write(place.folder)
    done = place.run("inspect", str(model), "--fusion", "drawn.html", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["fusion"]
    assert set(said["cycles"]) == {"none", "all", "greedy"}
    assert len(said["decisions"]) == 8
    assert all(row["estimated"] for row in said["decisions"])
    assert (place.folder / "drawn.html").exists()
    assert "fusion" not in json.loads(place.run("inspect", str(model), "--json").stdout)


def test_all_that_is_fused_into_a_layer_is_seen() -> None:
    """Joined siblings bring their clips along, so a layer may have eight or more fusions."""
    rows: list[FusionDecision] = [
        {"name": f"siblings {k}", "kind": "siblings", "fused": True, "cycles_saved": k,
         "dram_bytes_saved": 0, "estimated": False}
        for k in range(9)
    ]  # fmt: skip
    said: FusionSummary = {
        "mode": "all", "decisions": rows, "cycles": {"all": 1}, "dram_bytes": {"all": 1},
        "evaluations": 1, "tuned": 0,
    }  # fmt: skip
    layer: dict[str, Json] = {
        "name": "a + b", "title": "conv", "cycles": 1, "reads": [], "labels": list[Json](range(9)),
    }  # fmt: skip
    page = fusion_page("net", "vta-pynq", said, {"layers": [layer], "refused": []}).decode()
    assert page.count('class="chip fused"') == 9
    chips = next(line for line in page.splitlines() if line.startswith(".layer .chips"))
    assert "hidden" not in chips
    assert "max-height" not in chips


def test_a_target_without_programs_has_nothing_to_draw(place: Place) -> None:
    done = place.run("inspect", "digits_cnn", "--target", "cpu", "--fusion", "drawn.html")
    assert done.returncode != 0
    assert "programs of cpu cannot be executed here" in " ".join(done.stderr.split())
    assert not (place.folder / "drawn.html").exists()
