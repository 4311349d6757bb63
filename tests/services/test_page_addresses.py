"""Checks that links use the ports of their workspace."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.sharing import free_port
from tilewright.services import page_addresses as urls
from tilewright.services.page_addresses import (
    MLFLOW,
    PREFECT,
    is_taken,
    page_address,
    port_or_last,
    remember_addresses,
)
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace

DEFAULTS = {PREFECT: f"http://{LOOPBACK}:4200", MLFLOW: f"http://{LOOPBACK}:5000"}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    for name in ("PREFECT_UI_URL", "PREFECT_API_URL", "MLFLOW_TRACKING_URI", "MLFLOW_UI_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(urls, "is_taken", lambda port: False)  # ignore other programs
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return Workspace(tmp_path / "home")


def another(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, name: str) -> Workspace:
    """Make another workspace next to the first one and activate it."""
    root = workspace.root.with_name(name)
    root.mkdir(exist_ok=True)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(root))
    return Workspace(root)


def test_each_workspace_of_a_user_has_ports_of_its_own(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ports are reserved before the pages are first served, so printed links stay valid."""
    first = {server: page_address(server) for server in DEFAULTS}
    other = another(workspace, monkeypatch, "other")
    second = {server: page_address(server) for server in DEFAULTS}
    assert not set(first.values()) & set(second.values())
    remember_addresses(other, prefect=f"http://{LOOPBACK}:4202")
    third = another(workspace, monkeypatch, "third")
    assert port_or_last(None, PREFECT) not in (4200, 4201, 4202)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(workspace.root))
    assert {server: page_address(server) for server in DEFAULTS} == first
    third.root.rmdir()
    another(workspace, monkeypatch, "fourth")
    assert port_or_last(None, PREFECT) == 4203, "the ports of a workspace that is gone are free"


def test_a_workspace_takes_no_port_that_another_program_uses(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "is_taken", {4200, 5001}.__contains__)
    assert (port_or_last(None, PREFECT), port_or_last(None, MLFLOW)) == (4202, 5002)


def test_without_a_place_for_claims_links_work(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace.root / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(workspace.root / "file"))
    assert page_address(PREFECT) == DEFAULTS[PREFECT]


def test_links_name_the_default_ports_at_first_then_those_used_last(workspace: Workspace) -> None:
    assert {server: page_address(server) for server in DEFAULTS} == DEFAULTS
    assert urls.flow_run_url("f") == f"{DEFAULTS[PREFECT]}/runs/flow-run/f"
    remember_addresses(
        workspace, prefect=f"http://{LOOPBACK}:4301", mlflow=f"http://{LOOPBACK}:5302"
    )
    remember_addresses(
        workspace, prefect=f"http://{LOOPBACK}:4303"
    )  # as `serve` does, which has no MLflow page
    assert urls.flow_run_url("f") == f"http://{LOOPBACK}:4303/runs/flow-run/f"
    assert urls.mlflow_run_url("1", "r").startswith(f"http://{LOOPBACK}:5302/#/experiments/1/runs/")
    assert (port_or_last(None, PREFECT), port_or_last(None, MLFLOW)) == (4303, 5302)
    assert port_or_last(4400, PREFECT) == 4400


def test_pages_on_every_interface_are_opened_on_loopback(workspace: Workspace) -> None:
    remember_addresses(workspace, prefect="http://0.0.0.0:4301")
    assert page_address(PREFECT) == f"http://{LOOPBACK}:4301"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"prefect": null}', "[" * 100_000])
def test_a_damaged_file_is_as_good_as_none(workspace: Workspace, text: str) -> None:
    (workspace.root / "pages.json").write_text(text)
    assert page_address(PREFECT) == DEFAULTS[PREFECT]
    remember_addresses(workspace, mlflow=f"http://{LOOPBACK}:5302")
    assert page_address(MLFLOW) == f"http://{LOOPBACK}:5302"


def test_pages_elsewhere_are_not_remembered(workspace: Workspace) -> None:
    remember_addresses(workspace, prefect="http://192.0.2.7:4301")
    assert page_address(PREFECT) == DEFAULTS[PREFECT]


def test_servers_that_the_user_names_are_linked_to(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_UI_URL", "")  # restored at the end
    monkeypatch.delenv("PREFECT_UI_URL")
    urls.name_prefect_pages("http://me:secret@prefect.example:4200/api")
    assert urls.flow_run_url("f") == "http://prefect.example:4200/runs/flow-run/f"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@mlflow.example/")
    assert urls.mlflow_run_url("1", "r").startswith("https://mlflow.example/#/experiments/1/")
    monkeypatch.setenv("MLFLOW_UI_URL", "https://pages.example")  # the address for browsers
    assert urls.mlflow_run_url("1", "r").startswith("https://pages.example/#/experiments/1/")


def test_the_list_of_runs_is_that_of_training(workspace: Workspace) -> None:
    assert urls.runs_url("http://h:1", "3") == (
        "http://h:1/#/experiments/3/runs?workflowType=machine_learning"
    )
    assert (
        urls.runs_url("http://h:1", None)
        == "http://h:1/#/experiments?workflowType=machine_learning"
    )


def test_a_port_on_which_somebody_listens_is_taken() -> None:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        assert is_taken(listener.getsockname()[1])
    assert not is_taken(free_port())
