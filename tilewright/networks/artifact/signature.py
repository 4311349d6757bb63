"""Signs artifacts with a key of the user's own workspace, so that what a user built runs without
`--allow-code`.

The signature is an HMAC-SHA256 over the digest of the manifest, which lists the digests of all
files, and over the folder's inode number. The key is random, readable by its user alone, and lies
in the workspace. It never leaves it. So a signature says that this user's own build wrote the
artifact into this very folder. Any change of the manifest, a copy, and an artifact or a workspace
that came from somebody else have no valid signature.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, canonical, digest, read_json
from tilewright.core.private_files import SecretError, find_secret, provide_secret
from tilewright.core.workspace_root import VARIABLE, is_brought_link, workspace_root

SIGNATURE, UNSIGNED = "signature", "unsigned"
"""Keys of the manifest: the signature, or why there is none."""
KEY_FILE = "artifact.key"
_SEAL_KEYS = (SIGNATURE, "sha256")
_PURPOSE = b"tilewright artifact, version 1\n"
_REMEDY = (
    "remove it, and the next build makes a new one; artifacts that were signed with it then need "
    "--allow-code"
)


class SigningError(TilewrightError):
    """A workspace that can hold no key."""


def sign(manifest: Mapping[str, Json], folder: Path) -> str:
    """Return the signature of an artifact that this process builds into a folder, which must exist:
    64 hex digits. Makes the workspace and its key if there are none. Raises `SigningError`."""
    root = _own_workspace()
    try:
        root.mkdir(parents=True, exist_ok=True)
        key = provide_secret(root / KEY_FILE, _REMEDY)
        return _hmac(key, manifest, folder)
    except OSError as error:
        raise SigningError(
            f"could not keep a key in {root / KEY_FILE}: {error.strerror or error}; set {VARIABLE} "
            "to a folder you can write"
        ) from None
    except SecretError as error:
        raise SigningError(str(error)) from None


def reason_for_doubt(manifest: Mapping[str, Json], folder: Path) -> str:
    """Return why an artifact does not count as the user's own, as the end of a sentence; empty if
    its signature is valid. Makes no key."""
    signature = manifest.get(SIGNATURE)
    if not isinstance(signature, str):
        return "it is not signed, so it was built by somebody else or by an earlier version"
    try:
        root = _own_workspace()
        key = find_secret(root / KEY_FILE, _REMEDY)
        expected = None if key is None else _hmac(key, manifest, folder)
    except FileNotFoundError:
        expected = None
    except (OSError, SigningError, SecretError) as error:
        return f"its signature cannot be checked ({error})"
    if expected is not None and hmac.compare_digest(expected.encode(), signature.encode()):
        return ""
    return (
        f"its signature is not one of your workspace {root} for this folder, so it was built by "
        "somebody else or in another workspace, or was copied or changed since"
    )


def _own_workspace() -> Path:
    """Raises `SigningError` for a workspace that may have come with a stranger's folder."""
    try:
        if is_brought_link():
            raise SigningError(
                f"found a link in place of the workspace, which may have come with the folder; set "
                f"{VARIABLE} to the folder that it leads to, or remove the link"
            )
        return workspace_root()
    except (OSError, RuntimeError) as error:
        raise SigningError(f"found no workspace: {error}; set {VARIABLE} to a folder") from None


def _hmac(key: str, manifest: Mapping[str, Json], folder: Path) -> str:
    """Raises `OSError` where the folder is missing."""
    # as it is read again: lists for tuples, text for numbers as keys
    plain = read_json(json.dumps({k: v for k, v in manifest.items() if k not in _SEAL_KEYS}))
    inode = os.stat(folder).st_ino
    message = _PURPOSE + f"{digest(canonical(plain))} {inode}".encode()
    return hmac.new(bytes.fromhex(key), message, hashlib.sha256).hexdigest()
