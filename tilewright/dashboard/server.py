"""Server of the start page and its data. It requires the login of the workspace.

`python -m tilewright.dashboard.server DESCRIPTOR FOLDER` starts the server on an open socket.
`FOLDER` is the folder below which output directories are searched.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tilewright.dashboard.answers import (
    Answer,
    answer_or_error,
    curves,
    delete_and_describe,
    describe_deletion,
    knobs,
    list_comparisons,
    list_runs,
)
from tilewright.dashboard.flow_runs import FlowRuns
from tilewright.dashboard.listing import KnownRuns
from tilewright.services.login_middleware import Guard
from tilewright.services.mlflow_server import mlflow_login
from tilewright.services.server_credentials import Credentials
from tilewright.services.workspace import current_workspace

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/dashboard.css": ("dashboard.css", "text/css"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
"""HTTP headers of every answer. Records contain names that other people chose. The page displays
these names as text. Even if it failed to do so, this policy would prevent foreign scripts from
running and data from leaving the page."""


def application(known: KnownRuns) -> Starlette:
    """Return the web application of the start page. It does not require a login by itself.

    Args:
        known: the runs to show.
    """

    def answered(ask: Callable[[Request], Answer]) -> Callable[[Request], Response]:
        # Not async, so that Starlette runs the function in a thread.
        def respond(request: Request) -> Response:
            result, good = answer_or_error(lambda: ask(request))
            return JSONResponse(result, 200 if good else 404, HEADERS)

        return respond

    def file(request: Request) -> Response:
        name, kind = FILES[request.url.path]
        return Response((PAGE / name).read_bytes(), headers=HEADERS, media_type=kind)

    def of_deletion(request: Request) -> Answer:
        run_id = request.query_params.get("id", "")
        # Web pages of another origin cannot send DELETE, nor a request with a cookie (`Guard`).
        delete = request.method == "DELETE"
        return (delete_and_describe if delete else describe_deletion)(known, run_id)

    def of_curves(request: Request) -> Answer:
        return curves(known, request.query_params.getlist("id"))

    def of_knobs(request: Request) -> Answer:
        asked = request.query_params
        return knobs(known, asked.get("id", ""), asked.get("layer", ""))

    return Starlette(
        routes=[
            *[Route(path, file) for path in FILES],
            Route("/health", lambda request: Response("OK")),
            Route("/api/runs", answered(lambda request: list_runs(known))),
            Route("/api/comparisons", answered(lambda request: list_comparisons(known))),
            Route("/api/curves", answered(of_curves)),
            Route("/api/knobs", answered(of_knobs)),
            Route("/api/deletion", answered(of_deletion), methods=["GET", "DELETE"]),
        ]
    )


def _serve(descriptor: int, folder: str) -> None:
    credentials = Credentials.from_environment()
    workspace = current_workspace()
    os.environ |= mlflow_login(workspace)
    known = KnownRuns(workspace, Path(folder), FlowRuns.from_environment())
    # The first reading of all runs takes longest, so it begins before the first request.
    reading = threading.Thread(target=answer_or_error, args=[lambda: list_runs(known)])
    reading.daemon = True
    reading.start()
    config = uvicorn.Config(
        Guard(application(known), credentials), log_level="warning", access_log=False,
        proxy_headers=False, timeout_graceful_shutdown=2,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    _serve(int(sys.argv[1]), *sys.argv[2:])
