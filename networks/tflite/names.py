"""Names that are readable, and that no two have. A converter that fuses operators joins all their
names with semicolons; one of these says best what an operator is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WORDS: Mapping[str, tuple[str, ...]] = {
    "CONV_2D": ("conv2d", "conv1d", "conv"),
    "DEPTHWISE_CONV_2D": ("depthwise", "conv"),
    "FULLY_CONNECTED": ("matmul", "dense", "fc"),
    "TRANSPOSE_CONV": ("conv2d_transpose", "conv_transpose"),
}
"""What the name of the framework's own operator ends with, by kind."""


def operator_name(kind: str, outputs: Sequence[str], weight: str = "") -> str:
    """The part of an output's name, or else of the weight's, that speaks of the operator itself;
    the first part of the output's where none does."""
    parts = [part for name in (*outputs[:1], weight) for part in name.split(";") if part]
    for word in WORDS.get(kind, ()):
        for part in parts:
            if part.rpartition("/")[2].rstrip("0123456789_").lower().endswith(word):
                return part
    return parts[0] if parts else kind


class Names:
    """Names that are given away once."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def free(self, name: str) -> str:
        """The name, or where it is taken, the name with a number."""
        free = name
        while free in self._taken:
            self._taken[name] += 1
            free = f"{name}.{self._taken[name]}"
        self._taken[free] = 1
        return free
