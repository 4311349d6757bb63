"""Manages the secret of a workspace. The first command that starts a server there makes it, in a
file that only its user can read."""

from __future__ import annotations

import errno
from pathlib import Path

from tilewright.core.private_files import provide_secret
from tilewright.services.workspace import Workspace, WorkspaceError

_REMEDY = (
    "remove it and repeat the command, which makes a new one (a 'tilewright ui' that is running "
    "then has to be started anew, too)"
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def secret_path(workspace: Workspace) -> Path:
    """Return where the secret is kept."""
    return workspace.root / "secret"


def workspace_secret(workspace: Workspace) -> str:
    """Return the secret of this workspace, made now if there is none: 64 hex digits. Raises
    `SecretError` for a file that others made or can read, or that is no plain file, and
    `WorkspaceError`; `OSError` where the disk is full."""
    path = secret_path(workspace)
    try:
        return provide_secret(path, _REMEDY)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise WorkspaceError(
            f"cannot keep a secret in {path}: {error.strerror or error}; remove what is there, "
            "or set TILEWRIGHT_HOME to a folder you can write"
        ) from None
