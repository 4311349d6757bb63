"""Tests which places for files a request to MLflow's server may name."""

from __future__ import annotations

import pytest

from tilewright.services.artifact_places import is_served


def test_a_request_may_name_what_the_server_keeps() -> None:
    for address in "mlflow-artifacts:/", "mlflow-artifacts:/1/r/artifacts", "mlflow-artifacts:///x":
        assert is_served(address)
    for address in "models:/m/1", "models:/m@champion", "runs:/1/model":
        assert is_served(address, lookup=True)
        assert not is_served(address)


@pytest.mark.attack
@pytest.mark.parametrize(
    "address",
    [
        "", "x", "/x", "file:/x", "s3:/x", "mlflow-artifacts:", "mlflow-artifacts:x", "models://h/x",
        "mlflow-artifacts://h/x", "mlflow-artifacts:/..", "mlflow-artifacts:/x/../y", "runs://h/x",
        "mlflow-artifacts:/%2e%2E/x", "mlflow-artifacts:/%25252e%25252e/x",
        "mlflow-artifacts:/..%2fx",
        "mlflow-artifacts:/x?y=/..", "mlflow-artifacts:/x#y", "mlflow-artifacts:/..\\x", "://[",
        "mlflow-arti\tfacts:/x", "mlflow-artifacts:/x\0", "mlflow-artifacts:\n/x",
    ],
)  # fmt: skip
def test_a_request_may_name_no_other_place(address: str) -> None:
    assert not is_served(address, lookup=True)
