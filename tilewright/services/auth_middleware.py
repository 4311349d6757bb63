"""Guards Prefect's and MLflow's servers: only callers with a secret get an answer.

Neither asks for a password by itself, and any web page could have a browser call them. The
middleware answers instead:

- 421 to a name that is not this server's (a web site that had its name lead here),
- 403 to a page of another origin; no page is told that it may read an answer,
- 415 to a POST of a kind that a form on any page can send,
- 401 to a request that its `Authenticator` does not know.
"""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus
from typing import Protocol

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilewright.services.request_checks import Hosts, HttpRequest

POLICY_VIOLATION = 1008
"""WebSocket: closed for want of the secret."""
TELL_NOBODY = "connect-src 'self' data: blob:; form-action 'self'"
"""Pages ask their own server and no other: Prefect's would ask a service of analytics, whatever
the server is set to."""
UNKEPT = {"Cache-Control": "no-store"}


class Authenticator(Protocol):
    """Says who may use a server."""

    refusal: str
    """What callers are told that it does not know."""
    cookie: str
    """The name of the cookie that logs in, which the server itself never sees; empty if none."""

    async def knows(self, request: HttpRequest) -> bool:
        """Whether a request brings a secret."""

    async def knows_login(self, login: str) -> bool:
        """Whether a text `NAME:PASSWORD` has a secret."""

    def enter(self, request: HttpRequest) -> Response | None:
        """What to answer to a link that logs a browser in, if it is one."""

    def challenge(self, request: HttpRequest) -> Response:
        """The 401 that says how to log in."""


class Guard:
    """ASGI application before another, which goes by the names of `hosts`. `sockets_log_in`: a
    WebSocket may bring its login in its first message, as Prefect's clients do."""

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        hosts: Hosts,
        *,
        sockets_log_in: bool = False,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._hosts = hosts
        self._sockets_log_in = sockets_log_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application answer."""
        if scope["type"] == "http":
            await self._http(HttpRequest(scope), receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(HttpRequest(scope), receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        send = partial(_send_closed, send)
        if refusal := self._misled(request):
            await refusal(request.scope, receive, send)
        elif request.is_form:
            text = "send JSON, and say so: Content-Type: application/json"
            answer = _plain(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
            await answer(request.scope, receive, send)
        elif entry := self._authenticator.enter(request):
            await entry(request.scope, receive, send)
        elif await self._authenticator.knows(request):
            await self._app(request.without_login(self._authenticator.cookie), receive, send)
        else:
            await self._authenticator.challenge(request)(request.scope, receive, send)

    async def _websocket(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        if refusal := self._misled(request):
            await _refuse_socket(refusal, request.scope, receive, send)
        elif await self._authenticator.knows(request):
            await self._app(request.without_login(self._authenticator.cookie), receive, send)
        elif self._sockets_log_in and "prefect" in request.scope.get("subprotocols", ()):
            entry = _LoginSocket(self._authenticator, receive, send)
            await self._app(request.scope, entry.receive, entry.send)
        else:
            refusal = _plain(HTTPStatus.UNAUTHORIZED, self._authenticator.refusal)
            await _refuse_socket(refusal, request.scope, receive, send)

    def _misled(self, request: HttpRequest) -> Response | None:
        """What to say to a request that a browser was led to make by somebody else's page."""
        host = request.one("host")
        if not self._hosts.include(host):
            return _plain(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
        origins = request.all("origin")
        own = self._hosts.origin(host)
        if any(origin.lower() != own for origin in origins) or request.is_embedded_elsewhere:
            return _plain(HTTPStatus.FORBIDDEN, "pages from elsewhere may not use this server")
        return None


class _LoginSocket:
    """A WebSocket whose first message must be a login; nothing is sent before."""

    def __init__(self, authenticator: Authenticator, receive: Receive, send: Send) -> None:
        self._authenticator = authenticator
        self._receive, self._send = receive, send
        self._entered = self._closed = False

    async def receive(self) -> Message:
        """The next message, or the end."""
        message = await self._receive()
        if message["type"] != "websocket.receive" or self._entered:
            return message
        if self._closed or not await self._is_login(message):
            await self._close()
            return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}
        self._entered = True
        return message

    async def send(self, message: Message) -> None:
        """What the application says, once it may speak."""
        if self._closed:
            return
        if message["type"] == "websocket.send" and not self._entered:
            await self._close()
            return
        self._closed = message["type"] == "websocket.close"
        await self._send(message)

    async def _is_login(self, message: Message) -> bool:
        try:
            said = json.loads(message.get("text") or message.get("bytes") or b"")
            if said["type"] != "auth":
                return False
            login = str(said["token"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        return await self._authenticator.knows_login(login)

    async def _close(self) -> None:
        if not self._closed:
            self._closed = True
            reason = self._authenticator.refusal
            await self._send(
                {"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason}
            )


def _plain(status: HTTPStatus, text: str) -> Response:
    return PlainTextResponse(text, status, UNKEPT)


async def _send_closed(send: Send, message: Message) -> None:
    """Without leave for other origins, whatever the application thinks of them."""
    if message["type"] == "http.response.start":
        kept = [
            (name.lower(), value)
            for name, value in message.get("headers", [])
            if not name.lower().startswith(b"access-control-")
        ]
        headers = MutableHeaders(raw=kept)
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("X-Frame-Options", "SAMEORIGIN")
        headers.setdefault("Content-Security-Policy", TELL_NOBODY)
        message = {**message, "headers": kept}
    await send(message)


async def _refuse_socket(refusal: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """With that answer where the server can send it, else with the server's own."""
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        await refusal(scope, receive, send)
        return
    reason = bytes(refusal.body).decode()
    await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
