"""Tests a tuner comparison in MLflow, its registered champion, and a run that starts from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import LAYERS, Place
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.services.prefect_server import Login
from tilewright.targets import make_target
from tilewright.targets.workload import parse_workload

pytestmark = pytest.mark.slow(seconds=3.5)

TUNERS = ("ml2tuner-published", "random")
SEEDS = (0, 1)
LAYER = "conv2d:n=1,c=16,h=8,w=8,o=32,k=3,s=2,p=1"
"""The second layer of digits_cnn."""


@dataclass(frozen=True)
class Logged:
    """A place in which a comparison of tuners on one layer was logged to MLflow."""

    place: Place
    printed: str

    @property
    def workspace(self) -> Path:
        return self.place.folder / "home"


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory, prefect_server: Login) -> Logged:
    place = Place(tmp_path_factory.mktemp("champion"), prefect_server)
    done = place.run(
        "compare", "--tuners", ",".join(TUNERS), "--network", "digits_cnn", "--workloads", "2",
        "--space", "template", "--trials", "24", "--batch", "8", "--seeds", "0,1", "--jobs", "1",
        "--out", "compared",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "WARNING" not in done.stderr
    return Logged(place, done.stdout)


@pytest.fixture
def client(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    import mlflow
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{logged.workspace}/mlflow/mlflow.db"
    before = mlflow.get_tracking_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    yield MlflowClient(uri)
    mlflow.set_tracking_uri(before)  # also sets the variable, which the patch restores


def test_a_comparison_is_a_run_with_a_run_per_tuner_and_seed_below_it(
    logged: Logged, client
) -> None:  # type: ignore[no-untyped-def]
    runs = client.search_runs(
        [experiment.experiment_id for experiment in client.search_experiments()]
    )
    assert {run.info.status for run in runs} == {"FINISHED"}
    (above,) = (r for r in runs if "mlflow.parentRunId" not in r.data.tags)
    assert above.info.run_id in logged.printed
    children = [r for r in runs if "mlflow.parentRunId" in r.data.tags]
    assert {r.data.tags["mlflow.parentRunId"] for r in children} == {above.info.run_id}
    assert {r.info.run_name for r in children} == {
        f"{tuner}, seed {seed}" for tuner in TUNERS for seed in SEEDS
    }
    (board,) = logged.place.json("compared/comparison.json")["leaderboards"]
    for row in board["tuners"]:
        assert above.data.metrics[f"final_regret/{row['tuner']}"] == row["regret"]
        assert f"| {row['tuner']} |" in above.data.tags["mlflow.note.content"]
    names = {artifact.path for artifact in client.list_artifacts(above.info.run_id)}
    assert {"report.html", "comparison.json"} <= names


def test_settings_are_parameters_and_figures_agree_with_the_record(logged: Logged, client) -> None:  # type: ignore[no-untyped-def]
    document = logged.place.json("compared/comparison.json")
    runs = client.search_runs(
        [experiment.experiment_id for experiment in client.search_experiments()]
    )
    for record in document["runs"]:
        (run,) = [r for r in runs if r.data.params.get("seed") == str(record["seed"])
                  and r.data.params.get("tuner") == record["tuner"]]  # fmt: skip
        optimum = document["optimum"][LAYER]
        assert run.data.metrics["final_regret"] == pytest.approx(
            record["best_cycles"][-1] / optimum - 1
        )
        invalid = sum(status != "valid" for status in record["statuses"])
        assert run.data.metrics["invalid_share"] == pytest.approx(invalid / 24)
        assert run.data.metrics["lowered"] == record["lowered"]
        history = client.get_metric_history(run.info.run_id, "regret")
        assert [point.value for point in history] == pytest.approx(
            [record["best_cycles"][p.step - 1] / optimum - 1 for p in history]
        )
        assert len(history) > 5
        if record["tuner"] == "ml2tuner-published":
            assert float(run.data.params["tuner.alpha"]) == 1.0


def test_the_champions_load_from_the_registry_without_any_pickle(logged: Logged, client) -> None:  # type: ignore[no-untyped-def]
    import mlflow.pyfunc

    models = client.search_registered_models()
    roles = {model.name.rpartition(".")[2] for model in models}
    assert {"P", "V"} <= roles <= {"P", "V", "A"}
    for model in models:
        version = client.get_model_version_by_alias(model.name, "champion")
        role = model.name.rpartition(".")[2]
        layer = "conv2d-n1-c16-h8-w8-o32-k3-s2-p1"
        assert model.name.startswith(f"tilewright.vta-pynq.template.{layer}")
        assert model.name.endswith(f".ml2tuner-published.{role}")
        assert {
            "workload": LAYER,
            "tuner": "ml2tuner-published",
            "role": role,
        }.items() <= model.tags.items()
        assert "trained by tuner ml2tuner-published" in model.description
        loaded = mlflow.pyfunc.load_model(f"models:/{model.name}@champion")
        signature = loaded.metadata.signature
        assert signature is not None
        example = loaded.metadata.load_input_example(
            mlflow.artifacts.download_artifacts(artifact_uri=version.source)
        )
        assert list(example.columns) == signature.inputs.input_names()
        assert any(name.startswith("log2_") for name in example.columns)
        predicted = loaded.predict(example)
        assert len(predicted) == len(example) > 1
        if model.name.endswith(".V"):
            assert ((predicted >= 0) & (predicted <= 1)).all()
        run = client.get_run(version.run_id)
        assert run.data.params["tuner"] == "ml2tuner-published"
    files = [path for path in logged.workspace.rglob("*") if path.is_file()]
    assert not [p for p in files if p.suffix in (".pkl", ".pickle", ".joblib", ".cloudpickle")]
    for path in (p for p in files if "artifacts" in p.parts):
        text = path.read_bytes()
        assert b"cloudpickle" not in text, path
        assert not text.startswith(b"\x80\x04"), path  # the header of a pickle
        assert not text.startswith(b"\x80\x05"), path


def test_a_tuning_run_starts_from_the_champion(logged: Logged) -> None:
    warm = logged.place.run(
        "tune", "digits_cnn", "--space", "template", "--trials", "8", "--batch", "8",
        "--layers", ",".join(LAYERS), "--tuner", "ml2tuner-published", "--seed", "5",
        "--out", "warm", "--warm-start", "champion",
    )  # fmt: skip
    assert warm.returncode == 0, warm.stderr
    assert (
        warm.stdout.count("no champion is registered to start from") == len(LAYERS) - 1
    )  # all others
    assert f"{LAYER}: no champion" not in warm.stdout
    (row,) = [row for row in logged.place.json("warm/schedules.json")["schedules"]
              if row["workload"] == LAYER]  # fmt: skip
    workload = parse_workload(LAYER, row["epilogue"])
    trials = pd.read_parquet(logged.place.folder / "warm" / "trials.parquet")
    first = trials[trials["workload"] == workload.id]
    optimum = logged.place.json("compared/comparison.json")["optimum"][LAYER]
    assert int(first["cycles"].iloc[0]) <= 1.05 * optimum
    (cold,) = tune(
        make_target("vta-pynq", "template"), workload, make_explorer("ml2tuner-published"),
        trials=8, batch=8, seed=5,
    )  # fmt: skip
    assert first["cycles"].sum() < cold.measured.cycles.sum()
    assert logged.place.json("warm/summary.json")["warm_start"] == "champion"


def test_without_a_champion_the_command_says_what_makes_one(logged: Logged) -> None:
    missing = logged.place.run(
        "tune", "digits_cnn", "--space", "extended", "--warm-start", "champion", "--out", "no"
    )
    assert missing.returncode == 2
    assert "none of these workloads has a champion" in missing.stderr
    assert "create champions with 'tilewright compare'" in missing.stderr
    wrong = logged.place.run("tune", "digits_cnn", "--warm-start", "best", "--out", "no")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: --warm-start best")
