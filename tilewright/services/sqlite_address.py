"""Writes SQLite files as addresses that SQLAlchemy reads."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

_LONGEST = 500
"""Bytes; SQLite takes 512, with what it adds for its journal."""


def sqlite_address(path: Path, driver: str = "") -> str:
    """The address of a file, by an absolute path. A `?` would end the path, so one that has it is
    given as SQLite's own kind of address, where it is `%3F`."""
    if "?" not in str(path):
        return f"sqlite{driver and '+'}{driver}:///{path}"
    # Without a driver MLflow takes all after `sqlite:///` for a path, and makes its folders.
    return f"sqlite+{driver or 'pysqlite'}:///file:{quote(str(path))}?uri=true"


def unfit_for_sqlite(path: Path) -> str | None:
    """Why a database cannot be there, whatever the disk says."""
    text = str(path)
    if any(ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 for letter in text):
        return "its path has control characters, or is not UTF-8"
    if len(text.encode()) > _LONGEST:
        return f"its path is too long for a database, which may have {_LONGEST} bytes in all"
    return None


def is_sqlite(address: str) -> bool:
    """Whether an address is one of a SQLite file."""
    return address.startswith(("sqlite:", "sqlite+"))
