"""Servers of this machine are asked directly, whatever proxy the user has for others."""

from __future__ import annotations

import os

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


def keep_loopback_direct() -> None:
    """Add loopback to what needs no proxy, for this process and those it starts. All that asks a
    server here heeds the variable: urllib, requests, httpx, websockets. Some read it in lower case
    first and some in upper case, so both say the same."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name.strip() for name in known.split(",") if name.strip()]
    names += [name for name in LOOPBACK_NAMES if name not in names]
    value = "*" if "*" in names else ",".join(names)
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = value
