"""Makes links into the pages of Prefect and MLflow: those of `tilewright ui` on this workspace, or
of servers the user names."""

from __future__ import annotations

import os

from tilewright.services.addresses import MLFLOW, PREFECT, page_address
from tilewright.services.url_credentials import without_login

TRAINING_PAGES = "?workflowType=machine_learning"
"""MLflow opens on pages for language models unless told otherwise."""
PREFECT_PAGES, MLFLOW_PAGES = "PREFECT_UI_URL", "MLFLOW_UI_URL"
"""Variables that name the pages, where a browser gets to them by another address than programs. The
second is ours."""


def flow_run_url(flow_run_id: str) -> str:
    """The page of a flow run."""
    return f"{_prefect_pages()}/runs/flow-run/{flow_run_id}"


def mlflow_run_url(experiment_id: str, run_id: str) -> str:
    """The page of an MLflow run."""
    return f"{_mlflow_pages()}/#/experiments/{experiment_id}/runs/{run_id}{TRAINING_PAGES}"


def runs_url(pages: str, experiment_id: str | None) -> str:
    """The list of an experiment's runs on MLflow's pages at this address; without an experiment,
    the list of all."""
    runs = "" if experiment_id is None else f"/{experiment_id}/runs"
    return f"{pages.rstrip('/')}/#/experiments{runs}{TRAINING_PAGES}"


def other_pages() -> dict[str, str]:
    """Where the start page leads to, by what is there."""
    return {"Prefect": _prefect_pages(), "MLflow": runs_url(_mlflow_pages(), None)}


def name_prefect_pages(api_url: str) -> None:
    """Links of this process go to the server that the user names by its API, unless its pages are
    named, too."""
    if api_url.rstrip("/").endswith("/api"):
        pages = without_login(api_url).removesuffix("/api")
        os.environ.setdefault(PREFECT_PAGES, pages)


def _prefect_pages() -> str:
    return without_login(os.environ.get(PREFECT_PAGES) or page_address(PREFECT))


def _mlflow_pages() -> str:
    tracking = os.environ.get(MLFLOW_PAGES) or os.environ.get("MLFLOW_TRACKING_URI", "")
    return without_login(tracking if tracking.startswith("http") else page_address(MLFLOW))
