"""Keeps passwords out of the URLs of databases, which are stored and shown."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit


def without_password(url: str) -> str:
    """Return the URL without its password, which goes to `PGPASSWORD` in the environment of this
    process unless that is set. PostgreSQL's client library reads it there."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    os.environ.setdefault("PGPASSWORD", unquote(parts.password))
    login, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login.partition(':')[0]}@{host}").geturl()
