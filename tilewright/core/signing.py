"""Signatures for files that a user created, made with a key of the user's workspace.

A signature is an HMAC-SHA256. Its key is random, only its user can read it, and it never leaves the
workspace. A valid signature therefore proves that a command of this user signed exactly this
content in this workspace.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.core.private_files import SecretError, find_secret, provide_secret
from tilewright.core.working_folder import VARIABLE, workspace_root

KEY_FILE = "artifact.key"
_REMEDY = (
    "remove the file; the next command that signs creates a new key. Artifacts and models "
    "that were signed with the old key then count as made by someone else"
)


class SigningError(TilewrightError):
    """The workspace cannot store the key, or the key cannot be read."""


def sign(purpose: str, content: str) -> str:
    """Sign a text. The workspace and its key are created if they do not exist.

    Args:
        purpose: kind of content, so that a signature for one purpose is not valid for another.
        content: text that identifies what is signed, such as a digest.

    Returns:
        The signature, 64 hexadecimal digits.

    Raises:
        SigningError: the workspace cannot store a key.
    """
    root = _workspace()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _signature(provide_secret(root / KEY_FILE, _REMEDY), purpose, content)
    except OSError as error:
        raise SigningError(
            f"cannot store the signing key {root / KEY_FILE}: {error.strerror or error}; set "
            f"{VARIABLE} to a folder that you can write to"
        ) from None
    except SecretError as error:
        raise SigningError(str(error)) from None


def is_own(purpose: str, content: str, signature: str) -> bool:
    """Return whether a signature of a text was made by this user in this workspace.

    No key is created.

    Args:
        purpose: kind of content, as it was passed to `sign`.
        content: text that was signed.
        signature: signature that `sign` returned.

    Raises:
        SigningError: the key cannot be read, or others could read it.
    """
    try:
        key = find_secret(_workspace() / KEY_FILE, _REMEDY)
    except FileNotFoundError:
        return False
    except (OSError, SecretError) as error:
        raise SigningError(str(error)) from None
    return key is not None and hmac.compare_digest(
        _signature(key, purpose, content).encode(), signature.encode()
    )


def _workspace() -> Path:
    """Return the folder of the workspace. Raise `SigningError` if it cannot be determined."""
    try:
        return workspace_root()
    except (OSError, RuntimeError) as error:
        raise SigningError(f"no usable workspace: {error}; set {VARIABLE} to a folder") from None


def _signature(key: str, purpose: str, content: str) -> str:
    return hmac.new(
        bytes.fromhex(key), f"{purpose}\n{content}".encode(), hashlib.sha256
    ).hexdigest()
