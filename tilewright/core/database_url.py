"""Addresses of databases, as SQLAlchemy reads them: without passwords, and of SQLite files.

Addresses are stored and shown, so a password does not stay in them.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

_LONGEST = 500
"""Bytes; SQLite takes 512, with what it adds for its journal."""


def without_password(url: str) -> str:
    """Return the URL without its password, which goes to `PGPASSWORD` in the environment of this
    process unless that is set. PostgreSQL's client library reads it there."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    os.environ.setdefault("PGPASSWORD", unquote(parts.password))
    login, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login.partition(':')[0]}@{host}").geturl()


def sqlite_address(path: Path, driver: str = "") -> str:
    """Return the address of an SQLite file, given by an absolute path. A `?` would end the path, so
    a path with a `?` is given as SQLite's own kind of address, where it is `%3F`."""
    if "?" not in str(path):
        return f"sqlite{driver and '+'}{driver}:///{path}"
    # Without a driver MLflow takes all after `sqlite:///` for a path, and makes its folders.
    return f"sqlite+{driver or 'pysqlite'}:///file:{quote(str(path))}?uri=true"


def unfit_for_sqlite(path: Path) -> str | None:
    """Return why a database cannot be at this path, whatever the disk says, or None."""
    text = str(path)
    if any(ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 for letter in text):
        return "its path has control characters, or is not UTF-8"
    if len(text.encode()) > _LONGEST:
        return f"its path is too long for a database, which may have {_LONGEST} bytes in all"
    return None


def is_sqlite(address: str) -> bool:
    """Return whether an address is that of an SQLite file."""
    return address.startswith(("sqlite:", "sqlite+"))
