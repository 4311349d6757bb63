"""Warns about the earlier names of public methods, which keep working for one release."""

from __future__ import annotations

import warnings


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of a method that it now has another name.

    Args:
        old: the earlier name, such as `Lowered.before`.
        new: the present name.
    """
    warnings.warn(
        f"{old} goes with version 0.4; call {new} with the same arguments",
        DeprecationWarning,
        stacklevel=3,
    )
