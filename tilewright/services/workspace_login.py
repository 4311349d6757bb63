"""Lets callers in who know a workspace's secret, and browsers by the link that was printed."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from tilewright.services.addresses import reachable
from tilewright.services.auth_middleware import UNKEPT, Guard
from tilewright.services.credentials import CHALLENGE, PROOF, Credentials
from tilewright.services.request_checks import Hosts, HttpRequest

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tilewright</title>
<body style="font: 1rem/1.6 sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem">
<h1 style="font-size: 1.3rem">Whose pages are these?</h1>
<p>They are for who started them. Open the address that <code>tilewright ui</code> (or
<code>serve</code>) printed, which ends in <code>?key=…</code>: it logs this browser in until that
command ends, and this page can then be loaded again.</p>
"""


def guarded(
    app: ASGIApp, credentials: Credentials, host: str, port: int, *, sockets_log_in: bool = False
) -> Guard:
    """An application that listens on `host` and `port`, for those who know the workspace."""
    login = WorkspaceLogin(credentials, host, port)
    return Guard(app, login, Hosts(host), sockets_log_in=sockets_log_in)


class WorkspaceLogin:
    """`Authenticator` of a server that listens on `host` and `port`: the secret as password or
    alone, or the cookie that the printed link sets."""

    refusal = "these pages are for who started them; log in with the link that was printed then"

    def __init__(self, credentials: Credentials, host: str, port: int) -> None:
        self._credentials = credentials
        self._address = urlsplit(reachable(f"http://{host}:{port}")).netloc
        self.cookie = credentials.cookie

    async def knows(self, request: HttpRequest) -> bool:
        """Whether it brings the secret, or the key as cookie."""
        if any(map(self._credentials.admits, request.all("authorization"))):
            return True
        return any(map(self._credentials.admits_key, request.cookies(self.cookie)))

    async def knows_login(self, login: str) -> bool:
        """Whether a text `NAME:PASSWORD` has the secret."""
        return self._credentials.admits_login(login)

    def enter(self, request: HttpRequest) -> Response | None:
        """To the same address without the key, with a cookie."""
        if not self._credentials.admits_key(request.key):
            return None
        answer = PlainTextResponse("", HTTPStatus.SEE_OTHER, UNKEPT)
        answer.headers["Location"] = request.clean_address
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.set_cookie(self.cookie, self._credentials.key, httponly=True, samesite="strict")
        return answer

    def challenge(self, request: HttpRequest) -> Response:
        """Says where the link is, and proves to a command that this is the workspace's server."""
        # not `Basic`: browsers would show a window of their own for every picture
        headers = {**UNKEPT, "WWW-Authenticate": 'Bearer realm="tilewright"'}
        if challenge := request.one(CHALLENGE.lower()):
            headers[PROOF] = self._credentials.proof(challenge, self._address)
        if "text/html" in request.one("accept"):
            return HTMLResponse(PAGE, HTTPStatus.UNAUTHORIZED, headers)
        return PlainTextResponse(self.refusal, HTTPStatus.UNAUTHORIZED, headers)
