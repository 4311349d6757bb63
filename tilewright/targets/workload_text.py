"""Reads and writes the sizes in a workload's text: `c=64`, `k=3x5`, `p=1x0x0x1`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.core.errors import WorkloadError


def pair(*values: int) -> str:
    """Several sizes, or one for all where they are equal."""
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


def pads(top: int, left: int, bottom: int, right: int) -> str:
    """Four pads, two where they are the same on both sides, or one for all."""
    return pair(top, left) if (top, left) == (bottom, right) else pair(top, left, bottom, right)


@dataclass(frozen=True)
class Sizes:
    """The sizes by key of a workload's `text`."""

    text: str
    values: Mapping[str, tuple[int, ...]]

    @classmethod
    def parse(cls, text: str, items: Iterable[str]) -> Sizes:
        """Of `c=64` and the like. Raises `WorkloadError`."""
        values: dict[str, tuple[int, ...]] = {}
        for item in items:
            key, _, value = item.strip().partition("=")
            if not re.fullmatch(r"\d+(x\d+){0,3}", value) or key in values:
                raise WorkloadError(
                    f"cannot read '{item}' in '{text}'; write for example c=64 or k=3x5"
                )
            values[key] = tuple(int(part) for part in value.split("x"))
        return cls(text, values)

    def one(self, key: str, default: int) -> int:
        """A size, or the first of several."""
        return self.values.get(key, (default,))[0]

    def two(self, key: str, default: int) -> tuple[int, int]:
        """Rows and columns."""
        found = self.values.get(key, (default,))
        return found[0], found[-1]

    def four(self, key: str) -> tuple[int, int, int, int]:
        """Top, left, bottom, right; 0 where the text says none."""
        found = self.values.get(key, (0,))
        top, left, bottom, right = found if len(found) == 4 else (found[0], found[-1]) * 2
        return top, left, bottom, right
