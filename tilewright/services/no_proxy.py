"""Makes clients ask servers of this machine directly, whatever proxy the user has for other
hosts."""

from __future__ import annotations

import os
from importlib.util import find_spec
from urllib.parse import urlsplit

from tilewright.core.errors import TilewrightError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
_SERVERS = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")


class ProxyError(TilewrightError):
    """A proxy that cannot be used."""


def keep_loopback_direct() -> None:
    """Add loopback to what needs no proxy, for this process and those it starts. All that asks a
    server here heeds the variable: urllib, requests, httpx, websockets. Some read it in lower case
    first and some in upper case, so both say the same. Raises `ProxyError`."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name.strip() for name in known.split(",") if name.strip()]
    names += [name for name in LOOPBACK_NAMES if name not in names]
    value = "*" if "*" in names else ",".join(names)
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = value
    if value != "*" and find_spec("socksio") is None:
        _go_without_socks()


def _go_without_socks() -> None:
    """Prefect's client does not start where a SOCKS proxy is named that it has no code for, even if
    it would not use it."""
    socks = [
        name
        for name, address in os.environ.items()
        if name.lower().endswith("_proxy") and address.lower().startswith("socks")
    ]
    elsewhere = [name for name in _SERVERS if _is_elsewhere(os.environ.get(name, ""))]
    if socks and elsewhere:
        raise ProxyError(
            f"the server in {elsewhere[0]} cannot be reached through the SOCKS proxy in "
            f"{socks[0]}; "
            "install httpx[socks] and PySocks, name an HTTP proxy, or unset one of the two"
        )
    for name in socks:
        del os.environ[name]


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and parts.hostname not in LOOPBACK_NAMES
