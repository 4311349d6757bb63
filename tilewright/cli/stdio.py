"""Preparation of the three standard streams, and checks of a command's arguments.

If a standard stream is closed, the next file to be opened would get its descriptor, and everything
that is printed would go into that file. If the encoding of a stream lacks a character such as `×`,
printing it would stop the command halfway. `prepare_streams` prevents both.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from typing import TextIO

from tilewright.core.errors import TilewrightError
from tilewright.core.user_text import printable
from tilewright.core.working_folder import started_in


class ArgumentError(TilewrightError):
    """An argument is not UTF-8 or names an empty folder, or the current folder cannot be used."""


def prepare_streams() -> None:
    """Connect closed streams to the null device, and let streams escape unencodable characters."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor: this one
    sys.stdout = _fit(sys.stdout, 1)
    sys.stderr = _fit(sys.stderr, 2)


def _fit(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is None:
        stream = open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if reconfigure := getattr(stream, "reconfigure", None):
        reconfigure(errors="backslashreplace")
    return stream


FOLDERS = ("--out", "--root")
"""Options whose value is a folder into which a command writes."""


def check_words(words: list[str]) -> None:
    """Check that the arguments, the current folder and `TILEWRIGHT_HOME` are valid UTF-8.

    Texts that are not valid UTF-8 could not be stored in records of runs.

    Args:
        words: command-line arguments.

    Raises:
        ArgumentError: a text is not valid UTF-8, an option gives an empty folder, or the current
            folder was deleted.
    """
    for flag, value in pairwise([*words, "-"]):
        if (flag in FOLDERS and not value) or flag in [f"{folder}=" for folder in FOLDERS]:
            raise ArgumentError(
                f"{flag.rstrip('=')} '' is an empty path; give a path ('.' is the "
                "current folder), or leave the option out"
            )
    for what, text in (
        *(("the argument", word) for word in words),
        ("the current folder", _folder()),
        ("TILEWRIGHT_HOME", os.environ.get("TILEWRIGHT_HOME", "")),
    ):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ArgumentError(
                f"{what} '{printable(text)}' contains bytes that are not UTF-8; "
                "rename the file, or set LC_ALL=C.UTF-8 if the name is UTF-8"
            ) from None


def _folder() -> str:
    try:
        return str(started_in())
    except FileNotFoundError:
        raise ArgumentError(
            "the current folder was deleted; change to a folder that exists"
        ) from None
