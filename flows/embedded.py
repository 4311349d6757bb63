"""Everything a flow needs around it on one machine: records, a Prefect server, quiet logs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tasks import server
from tasks.home import Home, use_home


@contextmanager
def embedded(prepare: Callable[[], None] = lambda: None) -> Iterator[Home]:
    """Run flows inside. Uses the server the user names in `PREFECT_API_URL` or the one of
    `tilewright ui`, else starts one for the while. `prepare` runs while it starts.

    Raises `ServerError` or `HomeError`.
    """
    home = use_home()
    own = None
    if "PREFECT_API_URL" not in os.environ:
        running = server.announced(home)
        if running is not None:
            os.environ["PREFECT_API_URL"] = running
        else:
            own = server.start_prefect_server(home)
    try:
        prepare()
        if own is not None:
            own.wait()
        with _settings():
            _log_to_file(home)
            try:
                yield home
            finally:
                _drain()
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        if own is not None:
            own.stop()


@contextmanager
def _settings() -> Iterator[None]:
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    # A heartbeat thread would be joined at the end of every subflow, for a second each.
    changed = {
        PREFECT_API_URL: os.environ["PREFECT_API_URL"],
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
    with temporary_settings(changed):
        yield


def _log_to_file(home: Home) -> None:
    """The terminal belongs to the command; what the libraries have to say goes to a file."""
    handler = logging.FileHandler(home.log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("", "prefect", "mlflow", "alembic", "uvicorn", "fastapi"):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            if isinstance(old, logging.StreamHandler) and not isinstance(old, logging.FileHandler):
                logger.removeHandler(old)
        if not name or not logger.propagate:
            logger.addHandler(handler)


def _drain() -> None:
    """Send what the clients still hold, before the server goes."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=5)
    EventsWorker.drain_all(timeout=5)
