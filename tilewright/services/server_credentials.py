"""Credentials of a workspace's servers: a secret for programs and a key for browsers.

The first command that starts a server in a workspace creates the secret, in a file that only its
user can read. The secret does not change afterwards.

A new key is created each time the web pages are started. The printed links contain the key, and a
browser that opens a link stores it as a cookie.

Servers receive both through environment variables, so that neither appears in a command line, a log
or a database.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from tilewright.core.private_files import SECRET_BYTES, provide_secret
from tilewright.services.page_addresses import is_local, is_own_listener
from tilewright.services.server_process import is_answering
from tilewright.services.workspace import Workspace, WorkspaceError

_REMEDY = (
    "remove the file and repeat the command, which creates a new secret (then also restart a "
    "running 'tilewright ui')"
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
USER = "tilewright"
"""User name that clients send together with the secret."""
KEY = "key"
"""Query parameter of a login link. Its value logs the browser in."""
_SECRET, _KEY = "TILEWRIGHT_SERVER_SECRET", "TILEWRIGHT_SERVER_KEY"


def secret_path(workspace: Workspace) -> Path:
    """Return the path of the file that stores the secret of a workspace."""
    return workspace.root / "secret"


def workspace_secret(workspace: Workspace) -> str:
    """Return the secret of a workspace, 64 hexadecimal digits. Create the secret if there is none.

    Args:
        workspace: the workspace.

    Raises:
        SecretError: another user owns or can read the file of the secret, or it is not a regular
            file.
        WorkspaceError: the secret cannot be stored.
        OSError: the disk is full.
    """
    path = secret_path(workspace)
    try:
        return provide_secret(path, _REMEDY)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise WorkspaceError(
            f"cannot store a secret in {path}: {error.strerror or error}; remove the file, or "
            "set TILEWRIGHT_HOME to a folder that you can write to"
        ) from None


@dataclass(frozen=True)
class Credentials:
    """Credentials of the servers of a workspace.

    Attributes:
        secret: secret of the workspace, with which programs log in.
        key: key with which browsers log in. It is valid until the servers are started again. If it
            is empty, no browser can log in.
    """

    secret: str = field(repr=False)
    key: str = field(default="", repr=False)

    @classmethod
    def for_workspace(cls, workspace: Workspace) -> Self:
        """Return the secret of a workspace together with a new key.

        Args:
            workspace: the workspace.

        Raises:
            SecretError: the file of the secret is not private.
            WorkspaceError: the secret cannot be stored.
        """
        return cls(workspace_secret(workspace), secrets.token_urlsafe(SECRET_BYTES))

    @classmethod
    def from_environment(cls) -> Self:
        """Read the credentials from the environment of this process, and remove them from it.

        Raises:
            KeyError: the process was started without credentials.
        """
        return cls(os.environ.pop(_SECRET), os.environ.pop(_KEY))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a child process, which reads them with `from_environment`."""
        return {_SECRET: self.secret, _KEY: self.key}

    @property
    def login(self) -> str:
        """User name and secret in the format of `PREFECT_API_AUTH_STRING`."""
        return f"{USER}:{self.secret}"

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers with which a program logs in."""
        return {"Authorization": f"Basic {base64.b64encode(self.login.encode()).decode()}"}

    @property
    def cookie(self) -> str:
        """Name of the session cookie.

        Browsers share cookies between the ports of a host, so the name differs for each start of
        the servers.
        """
        return f"{USER}-{hashlib.sha256(self.key.encode()).hexdigest()[:8]}"

    def link(self, address: str) -> str:
        """Add the key to an address, so that a browser that opens the address is logged in."""
        parts = urlsplit(address)
        query = urlencode([*parse_qsl(parts.query), (KEY, self.key)])
        return parts._replace(path=parts.path or "/", query=query).geturl()

    def admits(self, authorization: str) -> bool:
        """Return whether an HTTP `Authorization` header contains the secret.

        The secret is accepted as the password of any user or as a bearer token.
        """
        scheme, _, value = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":
            return _equal_in_constant_time(value.strip(), self.secret)
        if scheme.lower() != "basic":
            return False
        try:
            text = base64.b64decode(value.strip(), validate=True).decode()
        except ValueError:
            return False
        return _equal_in_constant_time(text.partition(":")[2], self.secret)

    def admits_key(self, key: str) -> bool:
        """Return whether `key` is the key with which browsers log in."""
        return bool(self.key) and _equal_in_constant_time(key, self.key)


def opens_local_server(address: str, credentials: Credentials) -> bool:
    """Return whether a server on this machine requires a login and accepts the credentials.

    The credentials are sent only if the server belongs to the current user and rejects a request
    without a login.

    Args:
        address: an address on this server that requires a login.
        credentials: credentials of a workspace.
    """
    port = urlsplit(address).port if is_local(address) else None
    if port is None or not is_own_listener(port) or is_answering(address):
        return False
    return is_answering(address, credentials.headers)


def _equal_in_constant_time(given: str, wanted: str) -> bool:
    """Return whether two strings are equal, after a time that does not depend on their content.

    The duration therefore reveals nothing about a secret.

    Args:
        given: string from a request.
        wanted: the secret.
    """
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
