"""Checks the headers of a request, before a server does anything."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from tilewright.services.credentials import CHALLENGE, KEY

if TYPE_CHECKING:
    from starlette.types import Scope

Headers = list[tuple[bytes, bytes]]

LOCALHOST = "localhost"
FORM_TYPES = {"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"}
"""What a page of another origin can send without asking first."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?", re.IGNORECASE)


class Hosts:
    """The names that a server goes by which listens on `host`, and those in `pages`: addresses
    (`https://…`) that a proxy before it or another network has for it.

    Any address of digits will do where the server is open to others: nobody else's name stands
    in it, so no web site can lead a browser here by it.
    """

    def __init__(self, host: str, pages: Iterable[str] = ()) -> None:
        self._pages = {urlsplit(page).netloc.lower(): _origin(page) for page in pages}
        address = _address(host)
        self._loopback = address.is_loopback if address else host.lower() == LOCALHOST
        self._names = {LOCALHOST, host.lower()}
        if not self._loopback:
            names = (socket.gethostname().lower(), socket.getfqdn().lower())
            self._names |= {*names, *(name.partition(".")[0] for name in names)}

    def include(self, header: str) -> bool:
        """Whether a request with this `Host` is meant for the server."""
        if header.lower() in self._pages:
            return True
        found = _HOST.fullmatch(header)
        if found is None:
            return False
        name = found[1].lower()
        address = _address(name.strip("[]"))
        if address is None:
            return name in self._names
        return address.is_loopback or not self._loopback

    def origin(self, header: str) -> str:
        """Where the server's own pages are from, if asked for with this `Host`."""
        return self._pages.get(header.lower(), f"http://{header}".lower())


class HttpRequest:
    """What is read of a request."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._headers: Headers = scope["headers"]

    def all(self, name: str) -> list[str]:
        """The values of a header."""
        return [value.decode("latin-1") for key, value in self._headers if key == name.encode()]

    def one(self, name: str) -> str:
        """The value of a header that stands there once, else nothing."""
        found = self.all(name)
        return found[0] if len(found) == 1 else ""

    def cookies(self, name: str) -> list[str]:
        """The values of the cookies of this name."""
        pairs = (pair.strip().partition("=") for pair in ";".join(self.all("cookie")).split(";"))
        return [value for found, _, value in pairs if found == name]

    @property
    def is_form(self) -> bool:
        """Whether it changes something, and any page could have a browser send it."""
        if self.scope["method"] != "POST":
            return False
        kind = self.one("content-type").partition(";")[0].strip().lower()
        return kind in FORM_TYPES and self._has_body

    @property
    def _has_body(self) -> bool:
        return bool(self.all("transfer-encoding")) or any(
            length.strip() != "0" for length in self.all("content-length")
        )

    @property
    def is_embedded_elsewhere(self) -> bool:
        """Whether a page of another origin, or port, loads it as a part of itself. Browsers say so;
        a link that is followed is no such part."""
        if self.one("sec-fetch-site") in ("", "same-origin", "none"):
            return False
        followed = self.one("sec-fetch-mode") == "navigate"
        return not (followed and self.one("sec-fetch-dest") == "document" and self._is_read)

    @property
    def _is_read(self) -> bool:
        return self.scope.get("method") in ("GET", "HEAD")

    @property
    def key(self) -> str:
        """Of a link that logs in, if it is one."""
        if self.scope["method"] != "GET":
            return ""
        return next((value for name, value in self._query if name == KEY), "")

    @property
    def clean_address(self) -> str:
        """Path and query on this server, without the key."""
        path = "/" + quote(self.scope["path"].lstrip("/"))  # two slashes would name another server
        rest = urlencode([(name, value) for name, value in self._query if name != KEY])
        return f"{path}?{rest}" if rest else path

    @property
    def _query(self) -> list[tuple[str, str]]:
        text = self.scope.get("query_string", b"").decode("latin-1")
        return parse_qsl(text, keep_blank_values=True)

    def without_login(self, cookie: str) -> Scope:
        """For the application, which has no use for the secret and might log it."""
        dropped = {b"authorization", b"cookie", CHALLENGE.lower().encode()}
        kept = [(name, value) for name, value in self._headers if name not in dropped]
        pairs = (pair.strip() for pair in ";".join(self.all("cookie")).split(";"))
        own = f"{cookie}=" if cookie else None
        others = "; ".join(pair for pair in pairs if pair and not (own and pair.startswith(own)))
        if others:
            kept.append((b"cookie", others.encode("latin-1")))
        return {**self.scope, "headers": kept}


def _origin(page: str) -> str:
    parts = urlsplit(page)
    return f"{parts.scheme}://{parts.netloc}".lower()


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
