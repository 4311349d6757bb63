"""Types that describe one file format to the fuzzer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HANG_SECONDS = 60
"""For one input."""
Draw = Callable[[random.Random], bytes]
Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Format:
    """A file format for tests with damaged files.

    `make` gives, for a folder of its own, `draw`, which makes an input, and `read`, which reads it.
    `readers` are the functions of the product that open its files, as `readers.py` names them;
    those of `in_child` do so in a process of their own. `share` is the number of its inputs for
    each input of a format that is cheap to read.
    """

    make: Callable[[Path], tuple[Draw, Read]]
    readers: tuple[str, ...] = ()
    in_child: tuple[str, ...] = ()
    share: float = 1.0


def named(name: str, data: bytes) -> bytes:
    """An input that says which file it is."""
    return name.encode() + b"\n" + data


def of_name(data: bytes) -> tuple[str, bytes]:
    """The name and the file of such an input."""
    name, _, rest = data.partition(b"\n")
    return name.decode(), rest
