"""Reads files of earlier releases, and checks that every reader refuses files of later releases."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import earlier_versions as earlier
from tests.cli.conftest import Place
from tests.earlier_versions import FUTURE, RELEASES
from tilewright.core.errors import TilewrightError
from tilewright.core.formats import FORMATS
from tilewright.evaluation.compare.record import read_leaderboards
from tilewright.evaluation.compare.workload_runs import TunerRun
from tilewright.evaluation.datasets.build import kept_plan, kept_rows
from tilewright.evaluation.datasets.folder import digest_of, read_about, read_table
from tilewright.evaluation.datasets.options import DatasetOptions
from tilewright.evaluation.diff import diff_runs, read_side
from tilewright.evaluation.explain.finished_run import read_folder
from tilewright.evaluation.row_cache import RowCache
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.output_folder import check_own_run
from tilewright.models.model_registry import load_model as load_learned
from tilewright.models.transfer.files import identity_of, read_index
from tilewright.models.transfer.registry import load_model
from tilewright.networks.artifact import Artifact, ArtifactError, load
from tilewright.networks.compiled.weights_file import pack_weights, unpack_weights
from tilewright.networks.tvm_runtime import HostProgram, clock_hz, layer_cycles
from tilewright.search import TrialStore, open_store, read_store
from tilewright.search.trial_store import FILE
from tilewright.services.workspace import Workspace, use_workspace
from tilewright.targets import make_target
from tilewright.targets.ground_truth import read_ground_truth
from tilewright.targets.vta.board.program_check import BoardError
from tilewright.targets.vta.board.program_image import is_bare, read_image
from tilewright.targets.workload import parse_workload
from tilewright.tasks.cached_task import DamagedRecord, Record, RecordSerializer
from tilewright.tasks.champion_registry import champion_file
from tilewright.tasks.champion_registry import digest_of as champion_digest
from tilewright.tasks.codecs import decode_state
from tilewright.tuning.export import export_schedules
from tilewright.tuning.fusion_interface import labels_of
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.read_trials import read_trials
from tilewright.tuning.run_metadata import (
    check_vacant,
    is_complete,
    read_run,
    replacement_note,
    trials_made,
)
from tilewright.tuning.run_trials import finished_trials, ongoing_trials
from tilewright.tuning.schedule_lookup import pool_rule, read_picks

LAYERS = ("conv2d:n=1,c=32,h=4,w=4,o=32,k=3,s=1,p=1", "dense:n=1,c=128,o=16")
USUAL = "bias, >> 8, min 127, max 0"
DATASET = DatasetOptions(rows=60, cpu_rows=0, seed=5, specs=1, workloads=2)


def tuning(folder: Path) -> TuningOptions:
    """Return the options of the run in the folder `tuned`."""
    return TuningOptions.parse(
        model="digits_cnn", layers=("conv3", "fc"), tuner="random", space="template", trials=6,
        batch=3, seed=5, out=str(folder / "tuned"),
    )  # fmt: skip


def codesign(folder: Path) -> CodesignOptions:
    return CodesignOptions.parse(
        networks=("digits_cnn",), budget=1.0, trials=4, out=str(folder / "codesign")
    )


def refused(read_it: Callable[[], object]) -> str:
    with pytest.raises(TilewrightError) as error:
        read_it()
    return str(error.value)


# -- reading files of earlier releases -----------------------------------------------------------


@pytest.fixture(scope="module", params=RELEASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier.unpack(request.param, tmp_path_factory.mktemp("earlier"))


def test_a_tuning_run_is_read_with_all_its_figures(folder: Path) -> None:
    written = json.loads((folder / "tuned" / "summary.json").read_bytes())
    assert written.get("version", 1) == (1 if "default_cycles" in written["total"] else 2)
    run = finished_trials(folder / "tuned")
    assert [layer.id for layer in run.layers] == [
        workload["id"] for workload in written["workloads"]
    ]
    for layer, row in zip(run.layers, written["workloads"], strict=True):
        assert layer.figures is not None
        assert layer.figures.tuned is not None
        assert (layer.text, layer.figures.tuned.seconds) == (
            row["workload"], row["tuned_seconds"],
        )  # fmt: skip
        assert layer.figures.fallback is not None
        assert layer.figures.fallback.seconds == row["fallback_seconds"]
        assert layer.figures.rule is not None
        earlier_rule = row.get("baseline_seconds", row.get("default_seconds"))
        assert layer.figures.rule.seconds == earlier_rule
        assert len(run.trials_of_workload(layer.id)) == row["trials"] == 6
    assert read_side(folder / "tuned").total.cycles == written["total"]["tuned_cycles"]
    explained = read_folder(folder / "tuned")
    assert [str(workload) for workload in explained.workloads] == list(LAYERS)
    assert (
        export_schedules(folder / "tuned", "autotvm", 1.0).schedules == 1
    )  # the only form that stock TVM can build


def test_a_run_of_0_1_is_compared_with_one_of_0_2(tmp_path: Path) -> None:
    old, new = (earlier.unpack(release, tmp_path / release) / "tuned" for release in RELEASES)
    verdict = diff_runs(read_side(old), read_side(new))
    assert (verdict.network, verdict.is_worse) == ("digits_cnn", False)


def test_its_ledger_has_the_trials_of_its_table(folder: Path) -> None:
    with read_store(folder / "tuned") as store:
        frame = store.frame()
        assert store.problems == []
    table = finished_trials(folder / "tuned").table
    same = frame[list(table.columns)]
    pd.testing.assert_frame_equal(
        same.drop(columns="config"), table.drop(columns="config"), check_dtype=False
    )
    assert [list(item) for item in table["config"]] == [list(item) for item in same["config"]]
    assert len(read_trials(folder / "tuned").table) == 12


def test_its_folder_is_known_and_takes_the_same_command_again(folder: Path) -> None:
    held = read_run(folder / "tuned")
    assert held is not None
    assert (held["tuner"], held["seed"], held["trials"]) == ("random", 5, 6)
    assert is_complete(folder / "tuned")
    assert set(trials_made(folder / "tuned").values()) == {6}
    check_vacant(tuning(folder))
    assert replacement_note(tuning(folder)) is None
    assert "older version" in refused(lambda: ongoing_trials(held, folder))


def test_its_schedules_and_labels_build_a_network(folder: Path) -> None:
    target = make_target("vta-pynq")
    written = json.loads((folder / "tuned" / "schedules.json").read_bytes())["schedules"]
    workloads = [parse_workload(row["workload"], row["epilogue"]) for row in written]
    picks = read_picks(folder / "tuned", workloads, target)
    assert [list(pick.config) for pick in picks] == [row["config"] for row in written]
    assert labels_of(folder / "tuned") is None
    labels = labels_of(folder / "fused")
    assert labels is not None
    assert set(labels.values()) == {True}


def test_a_dataset_is_read_and_its_plan_is_resumed(folder: Path) -> None:
    about = read_about(folder / "dataset")
    assert (about.version, about.rows, len(about.workloads)) == (1, 60, 2)
    table = read_table(folder / "dataset", rows=20)
    assert len(table) == 20
    plan = kept_plan(folder / "dataset", DATASET)
    assert plan is not None
    assert (plan.rows, plan.digest) == (60, about.made["plan"])
    assert kept_rows(folder / "dataset") == 60


def test_a_model_of_it_is_loaded_and_predicts(folder: Path) -> None:
    model = load_model(folder / "model", trusted=True)
    assert (model.kind, read_index(folder / "model").format) == ("xgboost", 1)
    table = read_table(folder / "dataset", rows=20)
    assert model.predict(table.features).log_latency.shape == (20,)
    assert len(identity_of(folder / "model")) == 16


def test_a_co_design_run_is_resumed(folder: Path) -> None:
    check_own_run(codesign(folder))
    with open_store(folder / "codesign") as store:
        assert store.problems == []
        assert len(store.frame()) > 0


def test_finished_runs_of_a_comparison_are_found(folder: Path) -> None:
    path = folder / "compared" / "runs.jsonl"
    keys = [json.loads(line)["key"] for line in path.read_bytes().splitlines()]
    rows = RowCache(path, TunerRun)
    assert [run.tuner for key in keys if (run := rows.find(key))] == ["ml2tuner", "random"]


def test_an_enumerated_space_is_read(folder: Path) -> None:
    (path,) = (folder / "ground_truth").iterdir()
    target = make_target("vta-pynq", "extended")
    truth = read_ground_truth(path, target, parse_workload(LAYERS[1], USUAL))
    assert truth is not None
    assert truth.optimum.cycles > 0


def test_a_champion_is_loaded(folder: Path) -> None:
    about, data = champion_file(folder / "champion")
    assert (about.tuner, about.kind) == ("ml2tuner", "xgboost")
    model = load_learned(about.kind, about.classify, about.columns, folder / "champion/model.ubj")
    assert list(model.columns) == about.columns
    assert len(champion_digest(about, data)) == 64


def test_a_program_in_a_module_is_read(folder: Path) -> None:
    """The network in a module of release 0.1 has version 1, as has an artifact of that release."""
    data = (folder / "offloaded.zip").read_bytes()
    assert len(layer_cycles(data)) == 4
    assert clock_hz(data) == 1e8
    if '"version": 2' not in (folder / "tuned" / "summary.json").read_text():
        assert "of version 1, this program reads 2; build it again" in refused(
            lambda: HostProgram(data)
        )
    else:
        assert HostProgram(data).outputs


# -- artifacts -----------------------------------------------------------------------------------


def test_an_artifact_of_0_2_runs_and_is_verified(tmp_path: Path) -> None:
    artifact = load(earlier.unpack("0.2", tmp_path) / "artifact")
    assert isinstance(artifact, Artifact)
    checks = list(artifact.verify())
    assert [check.wrong for check in checks] == [0] * 4


@pytest.mark.slow(seconds=8)
def test_an_artifact_of_0_1_is_refused_with_what_makes_it_anew(tmp_path: Path) -> None:
    place = Place(earlier.unpack("0.1", tmp_path))
    message = "artifact is an artifact of version 1, this program reads 2 and 3; build it again"
    with pytest.raises(ArtifactError, match=message):
        load(tmp_path / "artifact")
    network = (tmp_path / "artifact" / "network.bin").read_bytes()
    with pytest.raises(BoardError, match=r"version 1, this program reads 2; build it again"):
        is_bare(network)
    run = ("run", "artifact", "--input", "a.npz", "--output", "b.npz")
    for command in (run, ("verify", "artifact")):
        done = place.run(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
    again = place.run("build", "digits_cnn", "--bare", "--out", "artifact")
    assert again.returncode == 0, again.stderr
    assert place.run("verify", "artifact").returncode == 0


# -- refusing files of later releases ------------------------------------------------------------


@dataclass(frozen=True)
class Forged:
    """A file format of release 0.2, with all its readers and a change to a future version."""

    change: Callable[[Path], object]
    readers: Callable[[Path], Iterator[Callable[[], object]]]


def _json(name: str, key: str = "version") -> Callable[[Path], object]:
    return lambda folder: earlier.change_json(folder / name, **{key: FUTURE})


def _of_run(folder: Path) -> Iterator[Callable[[], object]]:
    options = tuning(folder)
    yield lambda: read_run(options.folder)
    yield lambda: is_complete(options.folder)
    yield lambda: trials_made(options.folder)
    yield lambda: check_vacant(options)
    yield lambda: replacement_note(options)


def _of_results(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: read_side(folder / "tuned")
    yield lambda: read_folder(folder / "tuned")
    yield lambda: export_schedules(folder / "tuned", "autotvm", 1.0)
    yield lambda: finished_trials(folder / "tuned")


def _of_summary(folder: Path) -> Iterator[Callable[[], object]]:
    yield from _of_results(folder)
    yield lambda: is_complete(folder / "tuned")


def _of_schedules(folder: Path) -> Iterator[Callable[[], object]]:
    target = make_target("vta-pynq")
    yield from _of_results(folder)
    yield lambda: read_picks(folder / "tuned", [parse_workload(LAYERS[0])], target)
    yield lambda: pool_rule(folder / "tuned", target)


def _of_ledger(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: read_trials(folder / "tuned")


def _of_store(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: read_trials(folder / "tuned")
    yield lambda: TrialStore(folder / "tuned" / FILE)


def _of_artifact(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: load(folder / "artifact")


def _of_network(folder: Path) -> Iterator[Callable[[], object]]:
    spec = make_target("vta-pynq").spec  # type: ignore[attr-defined]
    files = {path.name: path.read_bytes() for path in (folder / "artifact").glob("*.bin")}
    yield lambda: load(folder / "artifact")
    yield lambda: is_bare(files["network.bin"])
    yield lambda: read_image(files, spec)


def _of_program(folder: Path) -> Iterator[Callable[[], object]]:
    data = (folder / "offloaded.zip").read_bytes()
    yield lambda: HostProgram(data)
    yield lambda: layer_cycles(data)
    yield lambda: clock_hz(data)


def _of_dataset(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: read_about(folder / "dataset")
    yield lambda: read_table(folder / "dataset", rows=5)
    yield lambda: digest_of(folder / "dataset")


def _of_model(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: load_model(folder / "model")
    yield lambda: read_index(folder / "model")
    yield lambda: identity_of(folder / "model")


def _change_state(folder: Path) -> None:
    state = min((folder / "cache" / "data").glob("*.zip"), key=lambda path: path.stat().st_size)
    (folder / "state.zip").write_bytes(earlier.future_state(state.read_bytes()))


def _future_record(name: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / "future").mkdir()
        (folder / "future" / name).write_text(json.dumps({"version": FUTURE}))

    return write


def _of_comparison(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: read_leaderboards(folder / "future")


FORGED = {
    "comparison": Forged(_future_record("comparison.json"), _of_comparison),
    "sweep": Forged(_future_record("sweep.json"), _of_comparison),
    "run": Forged(_json("tuned/run.json"), _of_run),
    "summary": Forged(_json("tuned/summary.json"), _of_summary),
    "schedules": Forged(_json("tuned/schedules.json"), _of_schedules),
    "fusion": Forged(
        _json("fused/fusion.json"), lambda folder: iter([lambda: labels_of(folder / "fused")])
    ),
    "trials": Forged(
        lambda folder: earlier.future_parquet(folder / "tuned" / "trials.parquet"),
        lambda folder: iter([lambda: finished_trials(folder / "tuned")]),
    ),
    "ledger": Forged(
        lambda folder: earlier.future_ledger(folder / "tuned" / "ledger.jsonl"), _of_ledger
    ),
    "trial_store": Forged(lambda folder: earlier.future_store(folder / "tuned"), _of_store),
    "codesign": Forged(
        _json("codesign/run.json"), lambda folder: iter([lambda: check_own_run(codesign(folder))])
    ),
    "artifact": Forged(lambda folder: earlier.future_artifact(folder / "artifact"), _of_artifact),
    "network": Forged(lambda folder: earlier.future_network(folder / "artifact"), _of_network),
    "offloaded": Forged(
        lambda folder: (folder / "offloaded.zip").write_bytes(
            earlier.future_program((folder / "offloaded.zip").read_bytes())
        ),
        _of_program,
    ),
    "dataset": Forged(_json("dataset/dataset.json"), _of_dataset),
    "dataset_plan": Forged(
        _json("dataset/plan.json"),
        lambda folder: iter([lambda: kept_plan(folder / "dataset", DATASET)]),
    ),
    "model": Forged(_json("model/model.json", "format"), _of_model),
    "tuner_state": Forged(
        _change_state,
        lambda folder: iter([lambda: decode_state((folder / "state.zip").read_bytes())]),
    ),
    "weights": Forged(
        lambda folder: (folder / "weights.bin").write_bytes(
            pack_weights([np.ones((2, 3), np.float32)])[:8]
            + FUTURE.to_bytes(4, "little")
            + bytes(4)
        ),
        lambda folder: iter(
            [lambda: unpack_weights(np.fromfile(folder / "weights.bin", np.uint8))]
        ),
    ),
    "workspace": Forged(
        lambda folder: (folder / "workspace.json").write_text(json.dumps({"version": FUTURE})),
        lambda folder: iter([lambda: use_workspace(Workspace(folder))]),
    ),
}
"""The formats whose future versions must be refused with a typed error."""


def test_no_format_is_forgotten() -> None:
    read_again = {name for name, format_ in FORMATS.items() if format_.read and not format_.cache}
    assert set(FORGED) | {"champion"} == read_again


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    return earlier.unpack(RELEASES[-1], tmp_path)


@pytest.mark.parametrize("name", FORGED)
def test_a_version_of_the_future_is_refused_by_every_reader(name: str, newest: Path) -> None:
    about = FORMATS[name]
    FORGED[name].change(newest)
    before = {path: path.read_bytes() for path in newest.rglob("*") if path.is_file()}
    for read_it in FORGED[name].readers(newest):
        said = refused(read_it)
        assert f"{about.name} of version {FUTURE}, this program reads" in said or (
            name == "dataset_plan" and f"it is {about.name} of version {FUTURE}" in said
        ), said
        assert " and ".join(map(str, about.read)) in said
        assert about.otherwise in said or name == "dataset_plan", said
    after = {path: path.read_bytes() for path in newest.rglob("*") if path.is_file()}
    assert after == before


def test_a_champion_of_the_future_is_refused(newest: Path) -> None:
    """`--warm-start` turns this error into its message."""
    earlier.future_champion(newest / "champion")
    with pytest.raises(ValueError, match=f"a champion of version {FUTURE}, this program reads 1"):
        champion_file(newest / "champion")


def test_caches_of_the_future_are_made_again(newest: Path) -> None:
    rows = newest / "compared" / "runs.jsonl"
    keys = [json.loads(line)["key"] for line in rows.read_bytes().splitlines()]
    earlier.future_rows(rows)
    assert [RowCache(rows, TunerRun).find(key) for key in keys] == [None, None]
    (table,) = (newest / "ground_truth").iterdir()
    earlier.future_parquet(table)
    target = make_target("vta-pynq", "extended")
    assert read_ground_truth(table, target, parse_workload(LAYERS[1], USUAL)) is None
    serializer = RecordSerializer()
    with pytest.raises(DamagedRecord, match="another format version"):
        serializer.loads(earlier.future_record(serializer.dumps(Record(b""))))
    assert {name for name, format_ in FORMATS.items() if format_.cache} == {
        "finished_runs", "ground_truth", "stage",
    }  # fmt: skip


def test_a_run_of_the_future_is_not_replaced(newest: Path) -> None:
    """The whole command refuses it too and changes nothing. `--fresh` replaces it."""
    earlier.change_json(newest / "tuned" / "run.json", version=FUTURE)
    shutil.rmtree(newest / "cache")
    place = Place(newest)
    command = (
        "tune", "digits_cnn", "--bare", "--layers", "fc", "--tuner", "random", "--trials", "2",
        "--out", "tuned",
    )  # fmt: skip
    before = {path.name: path.read_bytes() for path in (newest / "tuned").iterdir()}
    done = place.run(*command)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"tuned/run.json is a run of version {FUTURE}, this program reads 1" in done.stderr
    assert "--fresh" in done.stderr
    assert {path.name: path.read_bytes() for path in (newest / "tuned").iterdir()} == before
    assert place.run(*command, "--fresh").returncode == 0
    assert read_run(newest / "tuned") is not None
