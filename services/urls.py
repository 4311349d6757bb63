"""The pages of Prefect and MLflow: those of `tilewright ui`, or of servers the user names."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from services.server_process import LOOPBACK

PREFECT_PORT = 4200
MLFLOW_PORT = 5000
TRAINING_PAGES = "?workflowType=machine_learning"
"""MLflow opens on pages for language models unless told otherwise."""


def flow_run_url(flow_run_id: str) -> str:
    """The page of a flow run."""
    return f"{_prefect_pages()}/runs/flow-run/{flow_run_id}"


def mlflow_run_url(experiment_id: str, run_id: str) -> str:
    """The page of an MLflow run."""
    return f"{_mlflow_pages()}/#/experiments/{experiment_id}/runs/{run_id}{TRAINING_PAGES}"


def _prefect_pages() -> str:
    return without_login(os.environ.get("PREFECT_UI_URL", f"http://{LOOPBACK}:{PREFECT_PORT}"))


def _mlflow_pages() -> str:
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    pages = tracking if tracking.startswith("http") else f"http://{LOOPBACK}:{MLFLOW_PORT}"
    return without_login(pages)


def without_login(url: str) -> str:
    """Addresses are kept in records and messages, a name and password in them are not."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")


def login(url: str) -> tuple[str, str] | None:
    """The name and password in an address."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    return unquote(parts.username), unquote(parts.password or "")
