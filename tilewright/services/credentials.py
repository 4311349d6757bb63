"""Credentials of a workspace's servers: a secret for programs, and a key for one browser session.

The secret belongs to the workspace and stays the same. The key is made at each start of the pages,
is part of the printed links, and becomes a cookie. Servers receive both through their environment,
so that neither is in a command line, a log, a database or a record.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from tilewright.core.private_files import SECRET_BYTES
from tilewright.services.addresses import is_local
from tilewright.services.ports import is_own_listener
from tilewright.services.secret_file import workspace_secret
from tilewright.services.server_process import answers
from tilewright.services.workspace import Workspace

USER = "tilewright"
"""User name that is sent with the secret."""
KEY = "key"
"""Query parameter of a link that logs a browser in."""
_SECRET, _KEY = "TILEWRIGHT_SERVER_SECRET", "TILEWRIGHT_SERVER_KEY"


@dataclass(frozen=True)
class Credentials:
    """The secret of a workspace and the key of one start of its pages. Without a key, no browser
    can log in."""

    secret: str = field(repr=False)
    key: str = field(default="", repr=False)

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """Return the workspace's secret with a new key.

        Raises:
            SecretError: the file of the secret is not private.
            WorkspaceError: the secret cannot be stored.
        """
        return cls(workspace_secret(workspace), secrets.token_urlsafe(SECRET_BYTES))

    @classmethod
    def inherited(cls) -> Self:
        """Take the credentials out of this process's environment.

        Raises:
            KeyError: the process was started without credentials.
        """
        return cls(os.environ.pop(_SECRET), os.environ.pop(_KEY))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables from which `inherited` reads the credentials."""
        return {_SECRET: self.secret, _KEY: self.key}

    @property
    def login(self) -> str:
        """User name and secret in the form of `PREFECT_API_AUTH_STRING`."""
        return f"{USER}:{self.secret}"

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that log a program in."""
        return {"Authorization": f"Basic {base64.b64encode(self.login.encode()).decode()}"}

    @property
    def cookie(self) -> str:
        """Name of the session cookie. Browsers share cookies between the ports of a host, so each
        start of the servers has a name of its own."""
        return f"{USER}-{hashlib.sha256(self.key.encode()).hexdigest()[:8]}"

    def link(self, address: str) -> str:
        """Return `address` with the key, which logs in the browser that opens the link."""
        parts = urlsplit(address)
        query = urlencode([*parse_qsl(parts.query), (KEY, self.key)])
        return parts._replace(path=parts.path or "/", query=query).geturl()

    def admits(self, authorization: str) -> bool:
        """Return whether an `Authorization` header has the secret: as the password of any user, or
        as a bearer token."""
        scheme, _, value = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":
            return _equal(value.strip(), self.secret)
        if scheme.lower() != "basic":
            return False
        try:
            text = base64.b64decode(value.strip(), validate=True).decode()
        except ValueError:
            return False
        return _equal(text.partition(":")[2], self.secret)

    def admits_key(self, key: str) -> bool:
        """Return whether `key` is the key of this session."""
        return bool(self.key) and _equal(key, self.key)


def opens_local_server(address: str, credentials: Credentials) -> bool:
    """Return whether a server of this machine refuses requests without a login and accepts these
    credentials. They are sent only if the server belongs to the current user.

    Args:
        address: an address on that server which is answered only with a login.
        credentials: the credentials of a workspace.
    """
    port = urlsplit(address).port if is_local(address) else None
    if port is None or not is_own_listener(port) or answers(address):
        return False
    return answers(address, credentials.headers)


def _equal(given: str, wanted: str) -> bool:
    """Compare two texts in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
