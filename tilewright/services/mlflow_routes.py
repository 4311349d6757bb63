"""Serves only MLflow's records and artifacts: no assistant, jobs, gateway, webhooks or scorers.

These run programs on the server's machine, or have it call addresses that a request names.
"""

from __future__ import annotations

import re
from http import HTTPStatus

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_RECORDS = (
    "datasets", "experiments", "get-online-trace-details", "get-trace-artifact", "label-schemas",
    "logged-models", "metrics", "model-versions", "registered-models", "review-queues", "runs",
    "server-info", "traces", "unified-traces", "upload-artifact",
)  # fmt: skip
_SERVED = re.compile(
    r"/(?:health|version|graphql|get-artifact|model-versions/get-artifact|v1/traces)?"
    r"|/static-files/.*"
    r"|/(?:ajax-)?api/2\.0/mlflow-artifacts/artifacts(?:/.*)?"
    r"|/(?:ajax-)?api/[23]\.0/mlflow/(?:artifacts/list|issues/search|"
    rf"(?:{'|'.join(_RECORDS)})(?:/.*)?)",
    re.DOTALL,
)
_REFUSED = re.compile(r".*/runs/create-promptlab-run.*", re.DOTALL)


def is_record_route(path: str) -> bool:
    """Whether a path, decoded, leads to records and artifacts."""
    return bool(_SERVED.fullmatch(path)) and not _REFUSED.fullmatch(path)


class OnlyRecords:
    """ASGI application before MLflow's. It answers 403 where MLflow would do anything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_record_route(scope["path"]):
            await self._app(scope, receive, send)
            return
        said = (
            "this server keeps records and artifacts; MLflow's assistant, jobs, gateway, webhooks "
            "and scorers are off"
        )
        answer = JSONResponse(
            {"error_code": "FEATURE_DISABLED", "message": said}, HTTPStatus.FORBIDDEN
        )
        await answer(scope, receive, send)
