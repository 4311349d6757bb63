"""Tests `tilewright model`: training, evaluating, registering and fine-tuning a model."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import Place
from tilewright.models.transfer.files import identity_of
from tilewright.models.transfer.registry import load_model
from tilewright.services.prefect_server import Login

SLICE = Path(__file__).parents[1] / "data" / "transfer" / "slice"
FIGURES = {
    "pairwise_accuracy", "interval", "top1_regret", "top8_regret", "rows", "seconds",
}  # fmt: skip
QUICK = ("--kind", "xgboost", "--option", "trees=40", "--option", "depth=5", "--threads", "1")


def _train(place: Place, *more: str) -> dict[str, object]:
    done = place.run("model", "train", "--dataset", str(SLICE), "--out", "model", *QUICK, *more)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = place.json("model/metrics.json")
    return result


@pytest.mark.nightly(seconds=6)
def test_a_model_is_trained_judged_and_judged_again_on_other_rows(place: Place) -> None:
    result = _train(place, "--split", "by_task", "--bare")
    assert result.keys() >= FIGURES
    low, high = result["interval"]  # type: ignore[misc]
    assert 0.5 < low <= result["pairwise_accuracy"] <= high <= 1  # type: ignore[operator]
    assert result["stopped"] in ("epochs", "no gain")
    assert not (place.folder / "home").exists(), "--bare keeps no records"
    done = place.run("model", "score", "model", "--dataset", str(SLICE), "--json")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again.keys() >= FIGURES
    assert again["seen"] is True
    assert again["hardware_seen"] == again["hardware"] > 0
    assert 0 < again["workloads_seen"] < again["workloads"], "some were held out"
    shown = place.run("model", "score", "model", "--dataset", str(SLICE)).stdout
    assert "not all unseen" in shown


@pytest.mark.slow(seconds=15)
def test_a_model_is_a_version_with_aliases_dataset_and_figures(
    tmp_path: Path, prefect_server: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, prefect_server)
    result = _train(place, "--split", "within_task")
    import mlflow
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/home/mlflow/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    client = MlflowClient(uri)
    version = client.get_model_version_by_alias("tilewright.transfer.xgboost", "champion")
    latest = client.get_model_version_by_alias("tilewright.transfer.xgboost", "newest")
    run = client.get_run(str(version.run_id))
    model = mlflow.pyfunc.load_model("models:/tilewright.transfer.xgboost@champion")
    mlflow.set_tracking_uri(before)
    assert version.version == latest.version
    assert version.tags["dataset"] == result["dataset"] == run.data.tags["dataset_digest"]
    assert version.tags["split"] == "within_task"
    assert run.info.status == "FINISHED"
    assert run.data.metrics["pairwise_accuracy"] == pytest.approx(result["pairwise_accuracy"])
    assert run.data.params["kind"] == "xgboost"
    (learned_from,) = run.inputs.dataset_inputs
    assert result["dataset"].startswith(learned_from.dataset.digest)  # type: ignore[union-attr]
    assert "prefect_flow_run_id" in run.data.tags
    fine = place.run(*FINE, "--start", "model", "--out", "fine")
    assert fine.returncode == 0, fine.stderr
    tuned = client.get_model_version_by_alias("tilewright.transfer.xgboost", "newest")
    theirs = client.get_run(str(tuned.run_id)).data
    best = client.get_model_version_by_alias("tilewright.transfer.xgboost", "champion")
    assert best.version == version.version, "it is better on some hardware alone"
    small = place.run(*FINE[:4], "--split", "by_task", "--rows", "300", "--option", "trees=3",
                      "--out", "small")  # fmt: skip
    assert small.returncode == 0, small.stderr
    best = client.get_model_version_by_alias("tilewright.transfer.xgboost", "champion")
    assert best.version == version.version, "the other is judged on other rows and knows fewer"
    assert tuned.tags["start_model"] == identity_of(tmp_path / "model")
    assert theirs.tags["start_model"] == tuned.tags["start_model"]
    assert theirs.metrics["before_fine_tuning"] > 0.5
    assert theirs.metrics["visible_before_fine_tuning"] > 0.5
    row = pd.DataFrame([[1.0, 2.0]], columns=["hardware bus_bytes", "schedule log2_tile_h"])
    assert list(model.predict(row)) == ["log_latency", "spread", "chance"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("train", "--dataset", "nowhere", "--out", "m"), "nowhere"),
        (("train", "--dataset", str(SLICE), "--out", "m", "--kind", "mlpp"), "did you mean mlp"),
        (("train", "--dataset", str(SLICE), "--out", "m", "--split", "by_tusk"), "by_task"),
        (("train", "--dataset", str(SLICE), "--out", "m", "--minutes", "0"), "--minutes"),
        (("train", "--dataset", str(SLICE), "--out", "m", "--minutes", "inf"), "--minutes"),
        (("train", "--dataset", str(SLICE), "--out", "m", "--option", "leaves=3"), "depth"),
        (("train", "--dataset", str(SLICE), "--out", "m", "--option", "trees=many"), "trees"),
        (("score", "nowhere", "--dataset", str(SLICE)), "model train"),
    ],
)
def test_a_mistake_is_one_message(arguments: tuple[str, ...], hint: str, place: Place) -> None:
    done = place.run("model", *arguments, *(("--bare",) if arguments[0] == "train" else ()))
    assert done.returncode == 2, done.stderr
    (message,) = done.stderr.splitlines()
    assert message.startswith("error: ")
    assert hint in message


FINE = ("model", "train", "--dataset", str(SLICE), "--rows", "400", "--threads", "1")


@pytest.mark.nightly(seconds=9)
def test_a_model_is_fine_tuned_from_another(place: Place) -> None:
    _train(place, "--split", "by_target", "--bare")
    before = {path.name: path.read_bytes() for path in (place.folder / "model").iterdir()}
    for out in ("fine", "again"):
        done = place.run(*FINE, "--start", "model", "--out", out, "--bare")
        assert done.returncode == 0, done.stderr
        assert "pairs in the right order before fine-tuning" in done.stdout
    result, index = place.json("fine/metrics.json"), place.json("fine/model.json")
    assert result.keys() >= FIGURES
    assert (result["kind"], result["split"]) == ("xgboost", "within_task")
    scored = load_model(place.folder / "model", trusted=True).columns
    assert index["columns"] == list(scored)
    assert 0 < result["before_fine_tuning"] <= 1
    assert 0 < result["visible"]["before_fine_tuning"] <= 1
    assert result["start"] == index["facts"]["start"] == identity_of(place.folder / "model")
    for name in ("model.ubj", "validity.ubj"):
        one, other = (place.folder / out / name for out in ("fine", "again"))
        assert one.read_bytes() == other.read_bytes()
    assert before == {path.name: path.read_bytes() for path in (place.folder / "model").iterdir()}


@pytest.mark.nightly(seconds=6)
def test_what_cannot_be_gone_on_with_is_one_message(place: Place) -> None:
    _train(place, "--split", "by_target", "--bare")
    (place.folder / "empty").mkdir()
    for more, hint in (
        (("--start", "model", "--out", "m", "--kind", "mlp"), "of kind xgboost"),
        (("--start", "empty", "--out", "m"), "contains no usable model"),
        (("--start", "model", "--out", "model"), "overwritten"),
        (("--start", "model", "--out", "m", "--option", "leaves=9"), "depth"),
        (("--start", "model", "--out", "m", "--rows", "40"), "rows"),
    ):
        done = place.run(*FINE, *more, "--bare")
        assert done.returncode == 2, done.stderr
        (message,) = done.stderr.splitlines()
        assert message.startswith("error: ")
        assert hint in message
        assert not (place.folder / "m").exists()


LAYER = ("--workload", "dense:n=1,c=256,o=64", "--bare", "--trials", "24", "--batch", "8")


@pytest.mark.nightly(seconds=12)
def test_a_tuner_starts_from_a_model_and_goes_on_where_it_was(place: Place) -> None:
    _train(place, "--split", "by_target", "--bare")
    blind = (*LAYER, "--tuner", "default-blind")
    for out, more in (("cold", ()), ("warm", ("--warm-start", "model"))):
        done = place.run("tune", *blind, *more, "--out", out)
        assert done.returncode == 0, done.stderr
    cold, warm = (
        pd.read_parquet(place.folder / out / "trials.parquet") for out in ("cold", "warm")
    )
    first = [set(item["config"].map(str)[:8]) for item in (cold, warm)]
    assert first[0] != first[1], "the first batch is the model's"
    again = place.run("tune", *blind, "--warm-start", "model", "--out", "warm")
    assert again.returncode == 0, again.stderr
    kept = pd.read_parquet(place.folder / "warm" / "trials.parquet")
    pd.testing.assert_frame_equal(kept, warm)


@pytest.mark.slow(seconds=3)
def test_what_no_tuner_can_start_from_is_one_message(place: Place) -> None:
    (place.folder / "empty").mkdir()
    done = place.run("tune", *LAYER, "--warm-start", "empty")
    assert done.returncode == 2
    assert "contains no usable model" in done.stderr
    assert "tilewright model train" in done.stderr
    _train(place, "--split", "by_target", "--bare")
    done = place.run("tune", *LAYER, "--tuner", "autotvm", "--warm-start", "model")
    assert done.returncode == 2
    assert "default-blind" in done.stderr
