"""Chooses a readable and unique name for each operator.

A converter that fuses operators joins all their names with semicolons. The name here is the one of
them that describes the operator best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PREFERRED: Mapping[str, tuple[str, ...]] = {
    "CONV_2D": ("conv2d", "conv1d", "conv"),
    "DEPTHWISE_CONV_2D": ("depthwise", "conv"),
    "FULLY_CONNECTED": ("matmul", "dense", "fc"),
    "TRANSPOSE_CONV": ("conv2d_transpose", "conv_transpose"),
    "ADD": ("add",),
    "MUL": ("mul",),
    "SUB": ("sub",),
}
"""What the framework's own name of an operator ends with, by the schema's word for its kind."""

KERNELS = frozenset((
    "add", "avgpool", "biasadd", "clipbyvalue", "concat", "conv", "conv2d", "depthwise", "matmul",
    "maxpool", "mean", "mul", "relu", "relu6", "reshape", "resource", "readvariableop", "sigmoid",
    "softmax", "sub", "tanh",
))  # fmt: skip
"""Last parts of a name that say what a layer computes, which its kind says already."""

RESULTS = frozenset(("identity", "identity_int", "statefulpartitionedcall"))
"""What a converter calls the results of a network, whatever computes them."""


def operator_names(operators: Sequence[tuple[str, str, str]]) -> list[str]:
    """Of operators, each (kind, name of its first output, that of its weights or ""), the names of
    the layers that they come from, without the scope that all have in common."""
    names = [_layer(kind, output, weight) for kind, output, weight in operators]
    scoped = [name.partition("/") for name in names]
    scopes = {scope for scope, slash, _ in scoped if slash}
    if len(scopes) == 1:
        names = [rest or scope for scope, _, rest in scoped]
    return names


def _layer(kind: str, output: str, weight: str) -> str:
    """The part of a name that speaks of the operator itself, up to the layer's own name."""
    parts = [part for name in (weight, output) for part in name.split(";") if part]
    first = output.split(";")[0]
    found = kind.lower() if not first or _word(first).split(":")[0] in RESULTS else first
    words = PREFERRED.get(kind, ())
    preferred = [part for word in words for part in parts if _word(part).endswith(word)]
    found = (preferred or [found])[0]
    path, slash, _ = found.rpartition("/")
    return path if slash and _word(found) in KERNELS else found


def _word(name: str) -> str:
    """The last part of a name, without the number at its end."""
    return name.rpartition("/")[2].rstrip("0123456789_").lower()


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

    def release(self, name: str) -> None:
        """Let a name be given away again."""
        self._taken.pop(name, None)
