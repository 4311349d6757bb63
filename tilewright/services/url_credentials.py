"""Removes names and passwords from addresses: records and messages have none."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit


def without_login(url: str) -> str:
    """Addresses are kept in records and messages, a name and password in them are not."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")


def login(url: str) -> tuple[str, str] | None:
    """The name and password in an address."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    return unquote(parts.username), unquote(parts.password or "")
