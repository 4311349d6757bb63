"""Where files of runs and models may be, whatever MLflow's database says; what commands do then is
in `tests/reliability/test_strange_records.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.services.artifact_places import ArtifactPlaceError, check_place
from tilewright.services.workspace import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    found = Home(tmp_path / "a ?b#c%d")
    found.mlflow_artifacts.mkdir(parents=True)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(found.root))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", found.mlflow_address)
    monkeypatch.delenv("_MLFLOW_SERVER_FILE_STORE", raising=False)
    return found


def test_the_home_is_a_place_and_so_is_what_mlflow_looks_up_itself(home: Home) -> None:
    for address in (
        home.mlflow_artifacts.as_uri(), f"{home.mlflow_artifacts.as_uri()}/x/artifacts",
        "models:/m-1", "runs:/1/model", "mlflow-artifacts:/x",
    ):  # fmt: skip
        check_place(address)


@pytest.mark.attack
@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/x", "http://127.0.0.1:9/x", "ftp://host/x", "dbfs:/x", "mlflow-artifacts://host/x",
        "file:///etc", "file://host/etc", "FILE:///etc", "/etc", "../x", "x", "file:x", "c:/x", "",
        "{uri}/../../../x", "{uri}/%2e%2e/%2e%2e/%2e%2e/x", "{path}/%2e%2e/%2e%2e/%2e%2e/x",
        "{path}/../../../x", "{uri}/link", "\x1b]0;x\x07",
    ],
)  # fmt: skip
def test_elsewhere_is_not(home: Home, address: str) -> None:
    (home.mlflow_artifacts / "link").symlink_to("/etc")
    artifacts = home.mlflow_artifacts
    with pytest.raises(ArtifactPlaceError, match="outside of") as caught:
        check_place(address.format(uri=artifacts.as_uri(), path=artifacts))
    assert str(caught.value).isprintable()


def test_a_tracking_server_decides_for_itself(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    check_place("s3://bucket/x")
