"""What the tasks of one process share: the home, its store, and who listens to progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache

from services.home import current_home
from targets.files import Json
from tasks.store import Store


@dataclass(frozen=True)
class Event:
    """Something a person may want to see happen: its kind and its facts."""

    kind: str
    facts: dict[str, Json] = field(default_factory=dict)


Listener = Callable[[Event], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_refresh: ContextVar[bool] = ContextVar("refresh", default=False)
_isolation: ContextVar[float] = ContextVar("isolation", default=0.0)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the events of everything within to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def emit(kind: str, **facts: Json) -> None:
    """Report progress to whoever listens, and to the log of the flow run that it is about."""
    _log(kind, facts)
    listener = _listener.get()
    if listener is not None:
        listener(Event(kind, facts))


def _log(kind: str, facts: dict[str, Json]) -> None:
    text = _LOG_LINES.get(kind)
    if text is None or "prefect" not in sys.modules:
        return
    from prefect.context import FlowRunContext
    from prefect.logging import get_run_logger

    if FlowRunContext.get() is not None:
        get_run_logger().info(text.format(**facts))


_LOG_LINES = {
    "round": "round {round}: {trials} trials, best {best} cycles, {valid_share:.0%} valid",
    "tuned": "default {default_cycles}, tuned {tuned_cycles}, roofline {roofline_cycles} cycles",
    "note": "{text}",
}


@contextmanager
def refreshing(active: bool) -> Iterator[None]:
    """Within, finished stages are computed anew instead of reused."""
    token = _refresh.set(active)
    try:
        yield
    finally:
        _refresh.reset(token)


def refresh_wanted() -> bool:
    return _refresh.get()


@contextmanager
def isolating(seconds: float) -> Iterator[None]:
    """Within, targets run in a process of their own, so many seconds a batch; 0: in this one."""
    token = _isolation.set(seconds)
    try:
        yield
    finally:
        _isolation.reset(token)


def isolation_wanted() -> float:
    return _isolation.get()


def store() -> Store:
    """The cache of the home in force."""
    return _store(str(current_home().root))


@lru_cache(maxsize=4)
def _store(root: str) -> Store:
    from pathlib import Path

    return Store(Path(root) / "cache")
