"""ASGI middleware that requires the workspace's login, for the start page and for MLflow.

The start page is our own application, and MLflow offers no login with a single secret. The
middleware protects both with the secret of the workspace, so that other users of the machine are
refused. It also refuses requests from web pages of other origins. Prefect does not need the
middleware, because Prefect has a setting for such a secret. `docs/decisions/servers.md` gives the
reasons.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilewright.services.server_credentials import KEY, Credentials

POLICY_VIOLATION = 1008
"""WebSocket close code for a request that violates the server's policy (RFC 6455)."""
OWN_SERVER_ONLY = "connect-src 'self' data: blob:; form-action 'self'"
"""Content security policy: pages may send requests only to their own server. Some pages of Prefect
and MLflow would otherwise call an analytics service."""
UNCACHED = {"Cache-Control": "no-store"}
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tilewright</title>
<body style="font: 1rem/1.6 sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem">
<h1 style="font-size: 1.3rem">Please log in</h1>
<p>Open the link that <code>tilewright ui</code> printed when it started. The link ends in
<code>?key=…</code> and logs this browser in until that command ends. You can then reload this
page.</p>
"""
REFUSAL = "log in with the link that 'tilewright ui' printed, or with the secret of the workspace"


class OwnServerOnly:
    """ASGI middleware that adds security headers to every response.

    With these headers, a browser lets a page contact only the server that it came from.

    Args:
        app: the application whose responses get the headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and add the headers to its response."""
        await self._app(scope, receive, partial(_send_confined, send))


class Guard:
    """ASGI middleware that refuses requests without the credentials of a workspace.

    WebSocket requests are always refused.

    Args:
        app: the protected HTTP application.
        credentials: the secret for programs and the key for browsers.
    """

    def __init__(self, app: ASGIApp, credentials: Credentials) -> None:
        self._app = OwnServerOnly(app)
        self._credentials = credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that has credentials, and refuse any other."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": REFUSAL})
            return
        answer = self._answer(Request(scope)) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)

    def _answer(self, request: Request) -> Response | None:
        """Decide whether a request may reach the application.

        Args:
            request: the request.

        Returns:
            A refusal, or the response to a login; None if the application should handle the
            request.
        """
        if _is_foreign(request):
            text = "requests from pages of another origin are not allowed"
            return PlainTextResponse(text, HTTPStatus.FORBIDDEN, UNCACHED)
        login = self._credentials
        if request.method == "GET" and login.admits_key(request.query_params.get(KEY, "")):
            return self._log_in(request)
        cookie = request.cookies.get(login.cookie, "")
        if login.admits_key(cookie) or login.admits(request.headers.get("authorization", "")):
            return None
        # Not `Basic`, because browsers would open a login dialog for every picture.
        headers = {**UNCACHED, "WWW-Authenticate": 'Bearer realm="tilewright"'}
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(PAGE, HTTPStatus.UNAUTHORIZED, headers)
        return PlainTextResponse(REFUSAL, HTTPStatus.UNAUTHORIZED, headers)

    def _log_in(self, request: Request) -> Response:
        """Log a browser in: set the session cookie, and redirect to the address without the key."""
        # A path that begins with two slashes would redirect to another server.
        address = "/" + quote(request.scope["path"].lstrip("/"))
        query = [item for item in request.query_params.multi_items() if item[0] != KEY]
        headers = {
            **UNCACHED,
            "Location": f"{address}?{urlencode(query)}" if query else address,
            "Referrer-Policy": "no-referrer",
        }
        answer = PlainTextResponse("", HTTPStatus.SEE_OTHER, headers)
        answer.set_cookie(
            self._credentials.cookie, self._credentials.key, httponly=True, samesite="strict"
        )
        return answer


def _is_foreign(request: Request) -> bool:
    """Return whether a web page of another origin sent the request. Following a link is allowed."""
    own = f"http://{request.headers.get('host', '')}".lower()
    if any(origin.lower() != own for origin in request.headers.getlist("origin")):
        return True
    if request.headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return False
    mode, kind = (request.headers.get(f"sec-fetch-{name}") for name in ("mode", "dest"))
    followed = mode == "navigate" and kind == "document"
    return not (followed and request.method in ("GET", "HEAD"))


async def _send_confined(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        headers = MutableHeaders(raw=list(message.get("headers", [])))
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("X-Frame-Options", "SAMEORIGIN")
        headers.setdefault("Content-Security-Policy", OWN_SERVER_ONLY)
        message = {**message, "headers": headers.raw}
    await send(message)
