"""Imports Prefect and MLflow before commands are forked (`tests/warm.py`), and hides both modules.

A command that imports neither library does not find them in `sys.modules`. A command that imports
one gets the modules in their state after a normal import. State that depends on the environment is
computed again: settings, logging, and whether to send telemetry. `tests/test_warm.py` compares both
cases. `prefect.main` sets up logging, so only the command imports it. `services` is imported first,
as in a command, because it decides which files Prefect reads.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from tests.sharing import OURS
from tilewright import services  # noqa: F401

PREFECT = (
    "prefect", "prefect.artifacts", "prefect.client.orchestration", "prefect.events.worker",
    "prefect.flow_runs", "prefect.flows", "prefect.logging.handlers", "prefect.runtime.flow_run",
    "prefect.server.api.server", "prefect.task_engine", "prefect.tasks", "prefect.transactions",
    "uvicorn",
)  # fmt: skip
MLFLOW = (
    "mlflow", "mlflow.pyfunc", "mlflow.store.db.utils", "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.tracking",
)  # fmt: skip

Loggers = dict[logging.Logger, tuple[int, tuple[logging.Handler, ...], tuple[object, ...], bool]]
"""The level, handlers, filters and `propagate` flag of each logger."""

UNTOUCHED = (logging.NOTSET, (), (), True)


class Kept:
    """The modules of an imported library, hidden until a command imports it.

    As a finder and loader, this class hands the modules back and restores their loggers. `anew`
    then repeats everything that depends on the environment.
    """

    def __init__(self, name: str, loggers: Loggers, anew: Callable[[], None]) -> None:
        self._name, self._loggers, self._anew = name, loggers, anew
        ours = [module for module in sys.modules if module == name or module.startswith(f"{name}.")]
        self._modules = {item: sys.modules.pop(item) for item in ours}
        self._spec = self._modules[name].__spec__
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = copy.copy(self._spec)
        assert spec is not None
        spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._modules[self._name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        sys.meta_path.remove(self)
        sys.modules.update(self._modules)
        _set(self._loggers)
        self._anew()


def keep_prefect() -> None:
    with _unnoticed() as loggers:
        for item in PREFECT:
            import_module(item)
    assert "prefect.main" not in sys.modules
    from prefect import _initialize_plugins, _initialize_sdk_analytics
    from prefect._internal import analytics
    from prefect.context import refresh_global_settings_context

    def anew() -> None:
        refresh_global_settings_context()
        analytics._telemetry_initialized = False
        _initialize_sdk_analytics()
        _initialize_plugins()

    Kept("prefect", loggers, anew)


def keep_mlflow() -> None:
    with _unnoticed() as loggers:
        for item in MLFLOW:
            import_module(item)
    from mlflow.environment_variables import MLFLOW_CONFIGURE_LOGGING
    from mlflow.telemetry import set_telemetry_client
    from mlflow.utils import logging_utils

    def anew() -> None:
        if MLFLOW_CONFIGURE_LOGGING.get() is True:
            logging_utils._configure_mlflow_loggers(root_module_name="mlflow")
        set_telemetry_client()

    Kept("mlflow", loggers, anew)


# -- state that imports change, apart from modules ---------------------------------------------


@contextmanager
def _unnoticed() -> Iterator[Loggers]:
    """Restore the environment, warnings, loggers and import hooks on exit.

    Yields the previous state of the loggers.
    """
    environment, filters, before = dict(os.environ), list(warnings.filters), _loggers()
    hooks = list(sys.path_hooks)
    for name in [name for name in environment if name.startswith(OURS)]:
        del os.environ[name]
    os.environ |= {
        "DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_CONFIGURE_LOGGING": "false",
    }  # fmt: skip
    had: Loggers = {}
    try:
        yield had
    finally:
        os.environ.clear()
        os.environ.update(environment)
        warnings.filters[:], sys.path_hooks[:] = filters, hooks
        sys.path_importer_cache.clear()
        had |= {item: state for item, state in _loggers().items() if state != before.get(item)}
        _set({item: before.get(item, UNTOUCHED) for item in had})


def _loggers() -> Loggers:
    known = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(item for item in known if isinstance(item, logging.Logger))]
    return {
        logger: (logger.level, tuple(logger.handlers), tuple(logger.filters), logger.propagate)
        for logger in loggers
    }


def _set(loggers: Loggers) -> None:
    for logger, (level, handlers, filters, propagate) in loggers.items():
        logger.setLevel(level)
        logger.handlers, logger.filters = list(handlers), list(filters)
        logger.propagate = propagate


keep_prefect()
keep_mlflow()
