"""Everything a flow needs around it on one machine: records, a Prefect server, quiet logs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from services.home import Home, use_home
from services.prefect_server import PrefectServer, announced, start_prefect_server
from services.urls import PREFECT_PAGES, name_prefect_pages
from targets.safe_files import open_own

API_URL = "PREFECT_API_URL"


@contextmanager
def embedded(prepare: Callable[[], None] = lambda: None) -> Iterator[Home]:
    """Run flows inside. Uses the server the user names in `PREFECT_API_URL` or the one of
    `tilewright ui`, else starts one for the while. `prepare` runs while it starts.

    Raises `ServerError` or `HomeError`.
    """
    home = use_home()
    named, pages = os.environ.get(API_URL), os.environ.get(PREFECT_PAGES)
    if named:
        name_prefect_pages(named)
    running = named or announced(home)
    own = None if running else start_prefect_server(home)
    try:
        os.environ[API_URL] = running or _address(own)
        prepare()
        if own is not None:
            own.process.wait()
        with _settings():
            _log_to_file(home)
            try:
                yield home
            finally:
                drain()
    finally:
        if named is None:
            os.environ.pop(API_URL, None)
        if pages is None:
            os.environ.pop(PREFECT_PAGES, None)
        if own is not None:
            own.process.stop()


def _address(server: PrefectServer | None) -> str:
    assert server is not None
    return server.api_url


@contextmanager
def _settings() -> Iterator[None]:
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    # A heartbeat thread would be joined at the end of every flow, for a second each.
    changed = {PREFECT_API_URL: os.environ[API_URL], PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with temporary_settings(changed):
        yield


class _OwnFileHandler(logging.FileHandler):
    """Writes to no file but the user's own."""

    def _open(self) -> TextIOWrapper:
        handle = open_own(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND)
        return os.fdopen(handle, "a", encoding=self.encoding)


def _log_to_file(home: Home) -> None:
    """The terminal belongs to the command; what the libraries have to say goes to a file."""
    handler = _OwnFileHandler(home.log)
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
