"""Starts what a flow needs around it on one machine: records, a Prefect server, quiet logs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tilewright.services.mlflow_server import mlflow_login
from tilewright.services.prefect_server import Login, announced, login_at, start_prefect_server
from tilewright.services.retention import prune_daily
from tilewright.services.urls import PREFECT_PAGES, name_prefect_pages
from tilewright.services.workspace import Workspace, use_workspace

API_URL, AUTH_STRING = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"


@contextmanager
def embedded(
    prepare: Callable[[], None] = lambda: None, *, prune: bool = True
) -> Iterator[Workspace]:
    """Run flows inside. Uses the server the user names in `PREFECT_API_URL` or the one of
    `tilewright ui`, else starts one for the while. `prepare` runs while it starts. With `prune`,
    cached stages that were long unused go first.

    Raises `ServerError`, `SecretError` or `WorkspaceError`.
    """
    workspace = use_workspace()
    if prune:
        prune_daily(workspace)
    mlflow = mlflow_login(workspace)
    changed = (API_URL, AUTH_STRING, PREFECT_PAGES, *mlflow)
    before = {name: os.environ.get(name) for name in changed}
    named = before[API_URL]
    if named:
        name_prefect_pages(named)
    login = login_for(named, workspace)
    own = None
    if login is None and not named:
        own = start_prefect_server(workspace)
        login = own.login
    try:
        if login is not None:
            os.environ |= login.settings
        os.environ |= mlflow
        prepare()
        if own is not None:
            own.process.wait()
        with _settings():
            _log_to_file(workspace)
            try:
                yield workspace
            finally:
                drain()
    finally:
        _restore(before)
        if own is not None:
            own.process.stop()


def login_for(named: str | None, workspace: Workspace) -> Login | None:
    """What opens the server that the user names, or that of `tilewright ui`, if it is up and one of
    this workspace's. A login that the user gives is theirs. Raises `SecretError` or
    `WorkspaceError`."""
    if not named:
        return announced(workspace)
    return None if os.environ.get(AUTH_STRING) else login_at(named, workspace)


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _settings() -> Iterator[None]:
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    # A heartbeat thread would be joined at the end of every flow, for a second each.
    changed = {PREFECT_API_URL: os.environ[API_URL], PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    if login := os.environ.get(AUTH_STRING):
        changed[PREFECT_API_AUTH_STRING] = login
    with temporary_settings(changed):
        yield


def _log_to_file(workspace: Workspace) -> None:
    """The terminal belongs to the command; what the libraries have to say goes to a file."""
    handler = logging.FileHandler(workspace.log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("", "prefect", "mlflow", "alembic", "uvicorn", "fastapi"):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            if isinstance(old, logging.StreamHandler) and not isinstance(old, logging.FileHandler):
                logger.removeHandler(old)
        if not name or not logger.propagate:
            logger.addHandler(handler)


def drain() -> None:
    """Send what the clients still hold, before the server goes."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=5)
    EventsWorker.drain_all(timeout=5)
