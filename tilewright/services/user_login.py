"""Lets the users of a team in, each by a name and a secret."""

from __future__ import annotations

import asyncio
import base64
from http import HTTPStatus

from starlette.responses import PlainTextResponse, Response

from tilewright.services.auth_middleware import UNKEPT
from tilewright.services.request_checks import HttpRequest
from tilewright.services.users import Users

_LONGEST = 256
"""Characters of a login that are looked at."""


class UserLogin:
    """`Authenticator` of a team's server: HTTP's Basic login, which browsers ask for."""

    refusal = "log in with your name and secret (deployments/team.py add-user NAME makes one)"
    cookie = ""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._one_at_a_time = asyncio.Lock()

    async def knows(self, request: HttpRequest) -> bool:
        """Whether it brings the name and the secret of a user."""
        given = request.one("authorization")
        scheme, _, value = given.strip().partition(" ")
        if scheme.lower() != "basic" or len(given) > 2 * _LONGEST:
            return False
        try:
            return await self.knows_login(base64.b64decode(value.strip(), validate=True).decode())
        except ValueError:
            return False

    async def knows_login(self, login: str) -> bool:
        """Whether a text `NAME:SECRET` is a user's."""
        name, _, secret = login.partition(":")
        if not secret or len(login) > _LONGEST:
            return False
        if self._users.verified(name, secret):
            return True
        # beside the loop: guesses hold up those who log in for the first time, and nobody else
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._users.verify, name, secret)

    def enter(self, request: HttpRequest) -> Response | None:
        """No link logs in."""
        return None

    def challenge(self, request: HttpRequest) -> Response:
        """Has browsers ask for name and secret."""
        headers = {**UNKEPT, "WWW-Authenticate": 'Basic realm="Tilewright", charset="UTF-8"'}
        return PlainTextResponse(self.refusal, HTTPStatus.UNAUTHORIZED, headers)
