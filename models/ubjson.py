"""Reads UBJSON (ubjson.org, draft 12) as XGBoost writes it, and nothing else of that format.

That is objects with keys' lengths as 64-bit integers, counted arrays, typed arrays of numbers.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[Any]
Ubjson: TypeAlias = "str | int | float | Values | list[Ubjson] | dict[str, Ubjson]"

MAX_DEPTH = 16
_INTEGERS = {b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8"}
_FLOATS = {b"d": ">f4", b"D": ">f8"}


def read_ubjson(data: bytes) -> Ubjson:
    """The value that all of the bytes hold; typed arrays keep their type, shape (count,).
    Raises `ValueError` for anything else."""
    reader = _UbjsonReader(data)
    value = reader.value(reader.take(1), 0)
    if reader.at != len(data):
        raise ValueError("bytes after the end")
    return value


class _UbjsonReader:
    """Where in the bytes reading has come to."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.at:
            raise ValueError("cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def value(self, kind: bytes, depth: int) -> Ubjson:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deep")
        if kind == b"{":
            return self._object(depth)
        if kind == b"[":
            return self._array(depth)
        if kind == b"S":
            return self._text()
        numbers = self._numbers(kind, 1)
        return float(numbers[0]) if numbers.dtype.kind == "f" else int(numbers[0])

    def _object(self, depth: int) -> dict[str, Ubjson]:
        found: dict[str, Ubjson] = {}
        while self.data[self.at : self.at + 1] != b"}":
            key = self._text()
            if key in found:
                raise ValueError(f"two values of {key!r:.40}")
            found[key] = self.value(self.take(1), depth + 1)
        self.at += 1
        return found

    def _array(self, depth: int) -> Values | list[Ubjson]:
        mark = self.take(1)
        if mark == b"$":
            kind = self.take(1)
            if self.take(1) != b"#":
                raise ValueError("an array without its length")
            return self._numbers(kind, self._length())
        if mark != b"#":
            raise ValueError("an array without its length")
        count = self._length()
        if count > len(self.data) - self.at:
            raise ValueError("cut short")
        return [self.value(self.take(1), depth + 1) for _ in range(count)]

    def _numbers(self, kind: bytes, count: int) -> Values:
        dtype = np.dtype(_INTEGERS.get(kind) or _FLOATS.get(kind) or "V")
        if dtype.kind == "V":
            raise ValueError(f"a value of type {kind!r}")
        found = np.frombuffer(self.take(count * dtype.itemsize), dtype)
        return found.astype(dtype.newbyteorder("="))

    def _text(self) -> str:
        return self.take(self._length()).decode()

    def _length(self) -> int:
        if self.take(1) != b"L":
            raise ValueError("a length that is not a 64-bit integer")
        found: int = struct.unpack(">q", self.take(8))[0]
        if found < 0:
            raise ValueError("a negative length")
        return found
