"""Defines what opens the servers of a workspace: its secret for programs, a key for a browser.

The key is part of the link that a command prints when it starts them, becomes a cookie, and ends
with them. Both reach a server by its environment: neither is in an argument, a log, a database or a
record. A server proves that it knows the secret before a client sends it. A program that took the
port, or is named in a file instead, learns nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from tilewright.core.private_files import SECRET_BYTES
from tilewright.services.secret_file import workspace_secret
from tilewright.services.workspace import Workspace

USER = "tilewright"
"""The name beside the secret where one is asked for; any will do."""
KEY = "key"
"""The parameter of a link that logs a browser in."""
CHALLENGE, PROOF = "Tilewright-Challenge", "Tilewright-Proof"
"""Headers: a text of the client's, and the proof of the server that it knows the secret."""
_SECRET, _KEY = "TILEWRIGHT_SERVER_SECRET", "TILEWRIGHT_SERVER_KEY"


@dataclass(frozen=True)
class Credentials:
    """A workspace's secret, and the key of one start of its servers. Without one no browser gets
    in."""

    secret: str = field(repr=False)
    key: str = field(default="", repr=False)

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """What servers are started with: the secret of the workspace and a new key. Raises
        `SecretError` and `WorkspaceError`."""
        return cls(workspace_secret(workspace), secrets.token_urlsafe(SECRET_BYTES))

    @classmethod
    def inherited(cls) -> Self:
        """Those this process was started with, taken out of its environment. Raises `KeyError`."""
        return cls(os.environ.pop(_SECRET), os.environ.pop(_KEY))

    @property
    def environment(self) -> dict[str, str]:
        """What a server process finds them by."""
        return {_SECRET: self.secret, _KEY: self.key}

    @property
    def login(self) -> str:
        """Name and password, as `PREFECT_API_AUTH_STRING` has them."""
        return f"{USER}:{self.secret}"

    @property
    def headers(self) -> dict[str, str]:
        """What a request is sent with."""
        return {"Authorization": f"Basic {base64.b64encode(self.login.encode()).decode()}"}

    @property
    def cookie(self) -> str:
        """The name of the cookie: a browser keeps one for all ports of a machine, so servers of
        different starts have different names."""
        return f"{USER}-{hashlib.sha256(self.key.encode()).hexdigest()[:8]}"

    def link(self, address: str) -> str:
        """An address that logs the browser in which it is opened."""
        parts = urlsplit(address)
        query = urlencode([*parse_qsl(parts.query), (KEY, self.key)])
        return parts._replace(path=parts.path or "/", query=query).geturl()

    def admits(self, authorization: str) -> bool:
        """Whether an `Authorization` header has the secret: as password, or alone."""
        scheme, _, value = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":
            return same(value.strip(), self.secret)
        if scheme.lower() != "basic":
            return False
        try:
            text = base64.b64decode(value.strip(), validate=True).decode()
        except ValueError:
            return False
        return self.admits_login(text)

    def admits_login(self, login: str) -> bool:
        """Whether a text `NAME:PASSWORD` has the secret."""
        return same(login.partition(":")[2], self.secret)

    def admits_key(self, key: str) -> bool:
        """Whether it is that of the link."""
        return bool(self.key) and same(key, self.key)

    def proof(self, challenge: str, address: str) -> str:
        """That the server at `address` (host and port) knows the secret. It names the address, so
        a proof asked of this server opens no other."""
        text = f"{challenge} {address}".encode()
        return hmac.new(self.secret.encode(), text, hashlib.sha256).hexdigest()

    def proven_by(self, url: str, timeout: float = 5.0) -> bool:
        """Whether the server there knows the secret. It is not sent."""
        challenge = secrets.token_hex(16)
        proof = _asked(url, {CHALLENGE: challenge}, timeout).get(PROOF.lower(), "")
        return same(proof, self.proof(challenge, urlsplit(url).netloc))


def same(given: str, wanted: str) -> bool:
    """Compared in a time that tells nothing of where they differ."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _named(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _asked(url: str, headers: Mapping[str, str], timeout: float) -> Mapping[str, str]:
    """The headers of the answer, whatever it says, by names in lower case; none without one."""
    request = urllib.request.Request(url, headers=dict(headers))
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with directly.open(request, timeout=timeout) as reply:
            return _named(reply.headers)
    except urllib.error.HTTPError as refused:
        return _named(refused.headers)
    except (OSError, ValueError):
        return {}
