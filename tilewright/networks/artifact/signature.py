"""Signs artifacts with a key of the user's own workspace, so that what a user built runs without
`--allow-code`.

A signature covers the digest of the manifest, which lists the digests of all files, and the inode
number of the artifact's folder. It proves that this user's own build wrote the artifact into this
very folder. Any change of the manifest, a copy, and an artifact that somebody else built have no
valid signature.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tilewright.core import signing
from tilewright.core.files import Json, canonical, digest, read_json
from tilewright.core.signing import SigningError
from tilewright.core.working_folder import workspace_root

SIGNATURE, UNSIGNED = "signature", "unsigned"
"""Keys of the manifest: the signature, or why there is none."""
_SEAL_KEYS = (SIGNATURE, "sha256")
_PURPOSE = "tilewright artifact, version 1"


def sign(manifest: Mapping[str, Json], folder: Path) -> str:
    """Return the signature of an artifact that this process builds into a folder, which must exist:
    64 hex digits. Makes the workspace and its key if there are none. Raises `SigningError`."""
    try:
        return signing.sign(_PURPOSE, _content(manifest, folder))
    except OSError as error:
        raise SigningError(f"could not sign {folder}: {error.strerror or error}") from None


def reason_for_doubt(manifest: Mapping[str, Json], folder: Path) -> str:
    """Return why an artifact does not count as the user's own, as the end of a sentence; empty if
    its signature is valid. Makes no key."""
    signature = manifest.get(SIGNATURE)
    if not isinstance(signature, str):
        return "it is not signed, so it was built by somebody else or by an earlier version"
    try:
        if signing.is_own(_PURPOSE, _content(manifest, folder), signature):
            return ""
        root = workspace_root()
    except (OSError, RuntimeError, SigningError) as error:
        return f"its signature cannot be checked ({error})"
    return (
        f"its signature is not one of your workspace {root} for this folder, so it was built by "
        "somebody else or in another workspace, or was copied or changed since"
    )


def _content(manifest: Mapping[str, Json], folder: Path) -> str:
    """Raises `OSError` where the folder is missing."""
    # as it is read again: lists for tuples, text for numbers as keys
    plain = read_json(json.dumps({k: v for k, v in manifest.items() if k not in _SEAL_KEYS}))
    return f"{digest(canonical(plain))} {os.stat(folder).st_ino}"
