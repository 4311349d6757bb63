"""Deprecation warning for public methods that were renamed. The old name works for one release."""

from __future__ import annotations

import warnings


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of a public method that the method was renamed.

    Args:
        old: the old name, such as `Lowered.before`.
        new: the new name.
    """
    warnings.warn(
        f"{old} goes with version 0.4; call {new} with the same arguments",
        DeprecationWarning,
        stacklevel=3,
    )
