"""Guards Prefect's and MLflow's servers: only callers with the secret get an answer.

Neither asks for a password by itself, and any web page could have a browser call them. The
middleware answers instead:

- 421 to a name that is not this server's (a web site that had its name lead here),
- 403 to a page of another origin; no page is told that it may read an answer,
- 415 to a POST of a kind that a form on any page can send,
- 401 to a request without the secret, or the cookie that the printed link sets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tilewright.services.addresses import reachable
from tilewright.services.credentials import CHALLENGE, PROOF, Credentials
from tilewright.services.request_checks import Headers, Hosts, HttpRequest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY_VIOLATION = 1008
"""WebSocket: closed for want of the secret."""
NO_SECRET = "these pages are for who started them; log in with the link that was printed then"
TELL_NOBODY = "connect-src 'self' data: blob:; form-action 'self'"
"""Pages ask their own server and no other: Prefect's would ask a service of analytics, whatever
the server is set to."""
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tilewright</title>
<body style="font: 1rem/1.6 sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem">
<h1 style="font-size: 1.3rem">Whose pages are these?</h1>
<p>They are for who started them. Open the address that <code>tilewright ui</code> (or
<code>serve</code>) printed, which ends in <code>?key=…</code>: it logs this browser in until that
command ends, and this page can then be loaded again.</p>
"""


class Guard:
    """ASGI application before another, which listens on `host` and `port`. `sockets_log_in`: a
    WebSocket may bring its login in its first message, as Prefect's clients do."""

    def __init__(
        self,
        app: ASGIApp,
        credentials: Credentials,
        host: str,
        port: int,
        *,
        sockets_log_in: bool = False,
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._hosts = Hosts(host)
        self._address = urlsplit(reachable(f"http://{host}:{port}")).netloc
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
            await _answer(send, *refusal)
        elif request.is_form:
            text = "send JSON, and say so: Content-Type: application/json"
            await _answer(send, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
        elif self._credentials.admits_key(request.key):
            await _answer(send, HTTPStatus.SEE_OTHER, "", self._logged_in(request))
        elif self._known(request):
            await self._app(request.without_login(self._credentials.cookie), receive, send)
        else:
            await self._ask_for_secret(request, send)

    async def _websocket(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        if refusal := self._misled(request):
            await _refuse_socket(request, receive, send, *refusal)
        elif self._known(request):
            await self._app(request.without_login(self._credentials.cookie), receive, send)
        elif self._sockets_log_in and "prefect" in request.scope.get("subprotocols", ()):
            entry = _Entry(self._credentials, receive, send)
            await self._app(request.scope, entry.receive, entry.send)
        else:
            await _refuse_socket(request, receive, send, HTTPStatus.UNAUTHORIZED, NO_SECRET)

    def _misled(self, request: HttpRequest) -> tuple[HTTPStatus, str] | None:
        """What to say to a request that a browser was led to make by somebody else's page."""
        host = request.one("host")
        if not self._hosts.include(host):
            return HTTPStatus.MISDIRECTED_REQUEST, "this server has another name"
        origins = request.all("origin")
        own = f"http://{host}".lower()
        if any(origin.lower() != own for origin in origins) or request.is_embedded_elsewhere:
            return HTTPStatus.FORBIDDEN, "pages from elsewhere may not use this server"
        return None

    def _known(self, request: HttpRequest) -> bool:
        if any(map(self._credentials.admits, request.all("authorization"))):
            return True
        return any(map(self._credentials.admits_key, request.cookies(self._credentials.cookie)))

    def _logged_in(self, request: HttpRequest) -> Headers:
        """To the same address without the key, with a cookie."""
        cookie = f"{self._credentials.cookie}={self._credentials.key}"
        return _headers({
            "Location": request.clean_address,
            "Set-Cookie": f"{cookie}; Path=/; HttpOnly; SameSite=Strict",
            "Referrer-Policy": "no-referrer",
        })  # fmt: skip

    async def _ask_for_secret(self, request: HttpRequest, send: Send) -> None:
        # not `Basic`: browsers would show a window of their own for every picture
        headers = {"WWW-Authenticate": 'Bearer realm="tilewright"'}
        if challenge := request.one(CHALLENGE.lower()):
            headers[PROOF] = self._credentials.proof(challenge, self._address)
        if "text/html" in request.one("accept"):
            headers["Content-Type"] = "text/html; charset=utf-8"
        text = PAGE if "Content-Type" in headers else NO_SECRET
        await _answer(send, HTTPStatus.UNAUTHORIZED, text, _headers(headers))


class _Entry:
    """A WebSocket whose first message must be a login; nothing is sent before."""

    def __init__(self, credentials: Credentials, receive: Receive, send: Send) -> None:
        self._credentials = credentials
        self._receive, self._send = receive, send
        self._entered = self._closed = False

    async def receive(self) -> Message:
        """The next message, or the end."""
        message = await self._receive()
        if message["type"] != "websocket.receive" or self._entered:
            return message
        if self._closed or not self._is_login(message):
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

    def _is_login(self, message: Message) -> bool:
        try:
            said = json.loads(message.get("text") or message.get("bytes") or b"")
            return said["type"] == "auth" and self._credentials.admits_login(str(said["token"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return False

    async def _close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._send(
                {"type": "websocket.close", "code": POLICY_VIOLATION, "reason": NO_SECRET}
            )


def _headers(values: dict[str, str]) -> Headers:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in values.items()]


async def _send_closed(send: Send, message: Message) -> None:
    """Without leave for other origins, whatever the application thinks of them."""
    if message["type"] == "http.response.start":
        headers = [
            (name, value)
            for name, value in message.get("headers", [])
            if not name.lower().startswith(b"access-control-")
        ]
        message = {**message, "headers": _with_defaults(headers)}
    await send(message)


def _with_defaults(headers: Headers) -> Headers:
    there = {name.lower() for name, _ in headers}
    wanted = _headers({
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "SAMEORIGIN",
        "Content-Security-Policy": TELL_NOBODY,
    })  # fmt: skip
    return [*headers, *((name, value) for name, value in wanted if name not in there)]


async def _answer(
    send: Send, status: HTTPStatus, text: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    await send(_start("http.response.start", status, text, headers))
    await send({"type": "http.response.body", "body": text.encode()})


def _start(
    kind: str, status: HTTPStatus, text: str, headers: Iterable[tuple[bytes, bytes]]
) -> Message:
    given = list(headers)
    if not any(name == b"content-type" for name, _ in given):
        given += _headers({"Content-Type": "text/plain; charset=utf-8"})
    length = _headers({"Content-Length": str(len(text.encode())), "Cache-Control": "no-store"})
    return {"type": kind, "status": int(status), "headers": given + length}


async def _refuse_socket(
    request: HttpRequest, receive: Receive, send: Send, status: HTTPStatus, text: str
) -> None:
    """With that status where the server can say it, else with its own."""
    await receive()
    if "websocket.http.response" not in request.scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": text})
        return
    await send(_start("websocket.http.response.start", status, text, ()))
    await send({"type": "websocket.http.response.body", "body": text.encode()})
