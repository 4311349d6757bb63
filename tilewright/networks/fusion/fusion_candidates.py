"""Finds what may be fused, and what may not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["activation", "pool", "shortcut", "average", "siblings"]
"""`activation`: a relu or clip with the layer before it, not as a layer of its own. `pool`: a
max-pool with the sums of the convolution before it. `shortcut`: the 1×1 convolution of a block's
shortcut with the sums of the block's last one, which adds its result. `average`: a global average
with the results of the convolution before it. `siblings`: a layer together with others that read
the same tensor, as one layer that writes the channels of all; needs two at least."""


@dataclass(frozen=True)
class FusionChoice:
    """Something that may be fused. `group` is that of siblings: the tensor they all read, else
    empty. `layers` are the outputs of the layers concerned, producers first."""

    kind: Kind
    name: str
    layers: tuple[str, ...]
    group: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Refused:
    """Something that looks as if it could be fused, and why it is not."""

    kind: Kind
    name: str
    reason: str


@dataclass(frozen=True)
class Choices:
    """Of a network: a labelling has a bit for each that is offered, in this order; any labelling
    makes a network that computes the same."""

    offered: tuple[FusionChoice, ...]
    refused: tuple[Refused, ...]

    def __len__(self) -> int:
        return len(self.offered)


def divided(
    kind: Kind, looked_at: Iterable[tuple[str, tuple[str, ...], str]]
) -> tuple[list[FusionChoice], list[Refused]]:
    """What may be fused and what may not, of names, the outputs of the layers concerned, and the
    reason against it, which is empty where there is none."""
    found: list[FusionChoice] = []
    refused: list[Refused] = []
    for name, outputs, reason in looked_at:
        if reason:
            refused.append(Refused(kind, name, reason))
        else:
            found.append(FusionChoice(kind, name, outputs))
    return found, refused
