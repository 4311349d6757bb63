"""Checks which places for files a request to MLflow's server may name: only those that the server
keeps itself.
"""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

_RESOLVED_FIRST = ("models", "runs")  # MLflow looks up their place, which is another one of these


def is_served(address: str, *, lookup: bool = False) -> bool:
    """Whether a request may name this place: below `mlflow-artifacts:/`, which a server keeps
    itself, without `..` however encoded; with `lookup` also one that MLflow looks up first."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    if parts.netloc or not address.isprintable() or "\\" in address:
        return False
    if lookup and parts.scheme in _RESOLVED_FIRST:
        return True
    names = _unquoted(parts.path).split("/")
    beside = parts.query or parts.fragment or os.pardir in names or "\0" in parts.path
    return parts.scheme == "mlflow-artifacts" and parts.path.startswith("/") and not beside


def _unquoted(text: str) -> str:
    while (plain := unquote(text)) != text:
        text = plain
    return text
