"""Tests which routes of MLflow a team's server has: a new version brings none unseen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.services.mlflow_routes import is_record_route

LIST = """
import json
from mlflow.server import app as pages
from mlflow.server.fastapi_app import app
found = {rule.rule for rule in pages.url_map.iter_rules()}
def walk(routes, prefix=""):
    for route in routes:
        if hasattr(route, "original_router"):
            walk(route.original_router.routes, getattr(route.include_context, "prefix", "") or "")
        elif hasattr(route, "methods"):
            found.add(prefix + route.path)
walk(app.routes)
print(json.dumps(sorted(found)))
"""
REFUSED = {
    "artifacts/presigned-download-url", "artifacts/presigned-upload-url", "assistant", "demo",
    "gateway", "gateway-proxy", "genai", "issues", "issues/<issue_id>", "issues/invoke", "jobs",
    "mcp-servers", "prompt-optimization", "runs/create-promptlab-run", "scorer", "scorers",
    "ui-telemetry", "webhooks", "workspaces",
}  # fmt: skip
"""What MLflow 3.17 has below `mlflow/` and a team's server has not."""


@pytest.mark.slow(seconds=6)
def test_what_mlflow_has_is_served_or_refused_on_purpose(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", LIST], cwd=tmp_path, capture_output=True,
        text=True, check=True,
        env=os.environ | {"_MLFLOW_SERVER_SERVE_ARTIFACTS": "true", "DO_NOT_TRACK": "true"},
    )  # fmt: skip
    routes = json.loads(done.stdout.splitlines()[-1])
    assert len(routes) > 300
    refused = {route for route in routes if not is_record_route(route)}
    shortened = set()
    for route in refused:
        below = re.sub(r"^/(ajax-)?api/\d\.0/(mlflow/)?", "", route)
        names = {below, below.partition("/")[0]} & REFUSED
        shortened |= names or {route}
    others = {route for route in shortened if route.startswith("/")}
    assert shortened - others <= REFUSED
    assert all(
        re.match(r"/gateway/|/build/|.*/mlflow-artifacts/(mpu|presigned)/|.*/2.0mlflow/", route)
        for route in others
    ), others


@pytest.mark.parametrize("path", ["/", "/health", "/static-files/x.js", "/get-artifact",
                                  "/api/2.0/mlflow/runs/create", "/api/2.0/mlflow/logged-models",
                                  "/ajax-api/2.0/mlflow-artifacts/artifacts/1/r/artifacts/x",
                                  "/api/2.0/mlflow-artifacts/artifacts"])  # fmt: skip
def test_records_are_served(path: str) -> None:
    assert is_record_route(path)


@pytest.mark.attack
@pytest.mark.parametrize("path", ["", "//", "/healthy", "/health/", "/x/health", "/api/2.0/mlflow",
                                  "/api/2.0/mlflow/", "/api/2.0/mlflow/runsx",
                                  "/API/2.0/mlflow/runs/create", "/api/3.0/mlflow/jobs/../runs",
                                  "/static-files", "/api/2.0/mlflow-artifacts/mpu/create/x",
                                  "/ajax-api/3.0/mlflow/assistant\n/runs/x"])  # fmt: skip
def test_what_only_looks_like_records_is_not(path: str) -> None:
    assert not is_record_route(path)
