"""Manages the users of a team's servers: a file of names, each with the scrypt hash of a secret.

Secrets are made here and shown once; the file, which its owner alone can read, does not have them.
Servers that run notice at the next request who was added or removed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.core.private_files import (
    SECRET_BYTES,
    SecretError,
    held_alone,
    read_private,
    write_private,
)

COST, BLOCK_SIZE, PARALLEL = 1 << 14, 8, 1
"""Of scrypt (RFC 7914): 16 MiB and some 50 ms a secret."""
_SALT_BYTES = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LIMIT = 1 << 20
_REMEDY = "remove it and add the users again with 'deployments/team.py add-user'"
_NOBODY_SALT = bytes(_SALT_BYTES)
_Stamp = tuple[int, int, int, int]


class UserError(TilewrightError):
    """A name that cannot be added or removed."""


@dataclass(frozen=True)
class _Entry:
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, secret: str) -> _Entry:
        salt = os.urandom(_SALT_BYTES)
        return cls(salt, _scrypt(secret, salt))

    @classmethod
    def read(cls, text: str) -> _Entry | None:
        """None for what is not an entry of this module's."""
        kind, _, rest = text.partition(":")
        salt, _, digest = rest.partition(":")
        try:
            found = cls(*(base64.b64decode(each, validate=True) for each in (salt, digest)))
        except (ValueError, binascii.Error):
            return None
        whole = len(found.salt) == _SALT_BYTES and len(found.digest) == SECRET_BYTES
        return found if kind == _KIND and whole else None

    def __str__(self) -> str:
        encoded = (base64.b64encode(each).decode() for each in (self.salt, self.digest))
        return ":".join([_KIND, *encoded])


_KIND = f"scrypt-{COST}-{BLOCK_SIZE}-{PARALLEL}"


def users_path(folder: Path) -> Path:
    """Where the users of a team with this folder are."""
    return folder / "users"


def add_user(path: Path, name: str) -> str:
    """A new secret for `name`, 64 hex digits; one that it had is void. Raises `UserError`,
    `SecretError` and `OSError`."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!a} is not a name for a user; take up to 64 letters, digits and . _ -"
        )
    secret = secrets.token_hex(SECRET_BYTES)
    with held_alone(path.parent):
        _write(path, _read(path)[0] | {name: _Entry.of(secret)})
    return secret


def remove_user(path: Path, name: str) -> None:
    """Let `name` in no longer. Raises `UserError`, `SecretError` and `OSError`."""
    with held_alone(path.parent):
        users = _read(path)[0]
        if name not in users:
            known = ", ".join(sorted(users)) or "nobody"
            raise UserError(f"{name!a} is not a user; {path} has {known}")
        _write(path, {user: entry for user, entry in users.items() if user != name})


class Users:
    """Those of a file, as it is at each question. For several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key = os.urandom(SECRET_BYTES)
        self._known: tuple[_Stamp | None, dict[str, _Entry]] = (None, {})
        self._verified: dict[str, tuple[_Entry, bytes]] = {}

    def verified(self, name: str, secret: str) -> bool:
        """Whether this secret is `name`'s and `verify` said so before: takes microseconds."""
        entry, digest = self._verified.get(name, (None, b""))
        same = hmac.compare_digest(digest, self._fast(secret))
        return same and entry is not None and self._current().get(name) == entry

    def verify(self, name: str, secret: str) -> bool:
        """Whether this secret is `name`'s: takes as long as scrypt, also for an unknown name."""
        entry = self._current().get(name)
        digest = _scrypt(secret, _NOBODY_SALT if entry is None else entry.salt)
        wanted = bytes(SECRET_BYTES) if entry is None else entry.digest
        if not hmac.compare_digest(digest, wanted) or entry is None:
            return False
        self._verified[name] = (entry, self._fast(secret))
        return True

    def _fast(self, secret: str) -> bytes:
        return hmac.new(self._key, secret.encode(errors="replace"), hashlib.sha256).digest()

    def _current(self) -> dict[str, _Entry]:
        """Nobody, if the file is gone or unfit."""
        try:
            stamp = _stamp(os.stat(self._path, follow_symlinks=False))
            if stamp != self._known[0]:
                users, found = _read(self._path)
                self._known = (_stamp(found) if found else None, users)
        except (OSError, SecretError):
            self._known = (None, {})
        return self._known[1]


def _read(path: Path) -> tuple[dict[str, _Entry], os.stat_result | None]:
    """What is no line of ours lets nobody in."""
    found = read_private(path, _REMEDY, _LIMIT)
    if found is None:
        return {}, None
    pairs = (line.partition(":") for line in found[0].split("\n"))
    entries = ((name, _Entry.read(rest)) for name, _, rest in pairs if _NAME.fullmatch(name))
    return {name: entry for name, entry in entries if entry is not None}, found[1]


def _write(path: Path, users: dict[str, _Entry]) -> None:
    write_private(path, "".join(f"{name}:{users[name]}\n" for name in sorted(users)))


def _stamp(state: os.stat_result) -> _Stamp:
    return state.st_dev, state.st_ino, state.st_ctime_ns, state.st_size


def _scrypt(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        secret.encode(errors="replace"), salt=salt, n=COST, r=BLOCK_SIZE, p=PARALLEL,
        dklen=SECRET_BYTES,
    )  # fmt: skip
