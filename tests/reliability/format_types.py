"""Types that describe one file format to the fuzzer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HANG_SECONDS = 60
"""Time limit in seconds for reading one input."""
Draw = Callable[[random.Random], bytes]
Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Format:
    """A file format that is tested with damaged files.

    `make` takes an empty folder and returns two functions: `draw` makes an input, and `read` reads
    it. `readers` are the package's functions that open files of this format, named as in
    `readers.py`. `in_child` are readers that run in a child process. `share` is the number of
    inputs, relative to a format that is cheap to read.
    """

    make: Callable[[Path], tuple[Draw, Read]]
    readers: tuple[str, ...] = ()
    in_child: tuple[str, ...] = ()
    share: float = 1.0


def named(name: str, data: bytes) -> bytes:
    """Return an input that contains the name of the file that it replaces."""
    return name.encode() + b"\n" + data


def of_name(data: bytes) -> tuple[str, bytes]:
    """Split such an input into the name and the content of the file."""
    name, _, rest = data.partition(b"\n")
    return name.decode(), rest
