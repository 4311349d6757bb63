"""Prints as JSON what a command finds when it imports Prefect and MLflow.

`tests/test_warm.py` runs it.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings

before = sorted({name.partition(".")[0] for name in sys.modules} & {"prefect", "mlflow"})

from tilewright.services.workspace import use_workspace  # noqa: E402

use_workspace()

import mlflow  # noqa: E402
import prefect  # noqa: E402
import prefect.main  # noqa: E402
from mlflow.telemetry import get_telemetry_client  # noqa: E402
from prefect.context import get_settings_context  # noqa: E402
from prefect.settings import get_current_settings  # noqa: E402


def of(logger: logging.Logger) -> list[object]:
    handlers = [
        (type(handler).__name__, handler.level)
        for handler in logger.handlers
        if not isinstance(handler, logging.NullHandler)
    ]
    filters = [type(filter_).__name__ for filter_ in logger.filters]
    return [filters, logger.level, handlers, logger.propagate, logger.disabled]


OWN = ("prefect", "mlflow", "sqlalchemy.engine", "alembic", "huey", "urllib3.connectionpool")
names = [name for name in logging.root.manager.loggerDict if name.startswith(OWN)]
loggers = {name: of(logging.getLogger(name)) for name in sorted(names)}
print(
    json.dumps(
        {
            "before": before,
            "settings": get_current_settings().to_environment_variables(),
            "profile": get_settings_context().profile.name,
            "tracking": mlflow.get_tracking_uri(),
            "telemetry": get_telemetry_client() is None,
            "loggers": {name: logger for name, logger in loggers.items() if any(logger[:3])},
            "root": of(logging.root),
            "threads": [thread.name for thread in threading.enumerate()],
            "warnings": sorted({str(filter_[:3]) for filter_ in warnings.filters}),
            "loaders": [type(item.__spec__.loader).__name__ for item in (prefect, mlflow)],
        }
    )
)
