"""Helpers for SQLAlchemy database URLs: removing passwords and building URLs of SQLite files.

URLs are stored and shown to users, so they must not contain a password.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

_LONGEST = 500
"""Maximum length of a path in bytes. SQLite's limit is 512, including the suffix of its journal
file."""


def without_password(url: str) -> str:
    """Return a database URL without its password, and store the password in the environment.

    The password is stored in the environment variable `PGPASSWORD` of this process, unless that
    variable is already set. PostgreSQL's client library reads it there.
    """
    parts = urlsplit(url)
    if not parts.password:
        return url
    os.environ.setdefault("PGPASSWORD", unquote(parts.password))
    login, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login.partition(':')[0]}@{host}").geturl()


def sqlite_address(path: Path, driver: str = "") -> str:
    """Return the SQLAlchemy URL of an SQLite file.

    In a plain URL, a `?` would end the path. A path that contains a `?` is therefore written in
    SQLite's own URI form, in which it becomes `%3F`.

    Args:
        path: absolute path of the file.
        driver: name of the SQLAlchemy driver; the default driver if empty.
    """
    if "?" not in str(path):
        return f"sqlite{driver and '+'}{driver}:///{path}"
    # If the URL names no driver, MLflow treats everything after `sqlite:///` as a path.
    return f"sqlite+{driver or 'pysqlite'}:///file:{quote(str(path))}?uri=true"


def unfit_for_sqlite(path: Path) -> str | None:
    """Return the reason why SQLite cannot use a path, or None if it can.

    Only the text of the path is checked, not the disk.
    """
    text = str(path)
    if any(ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 for letter in text):
        return "its path contains control characters or is not UTF-8"
    if len(text.encode()) > _LONGEST:
        return f"its path is longer than {_LONGEST} bytes, the limit for a database"
    return None


def is_sqlite(address: str) -> bool:
    """Return whether a database URL refers to an SQLite database."""
    return address.startswith(("sqlite:", "sqlite+"))
