"""Holds all that is learned about a model before it meets an accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.networks.fused_calls import Partitioned
from tilewright.networks.graph import Absorbed, Operator, Shape


@dataclass(frozen=True)
class Examined:
    """All that was learned about a model, independent of any accelerator.

    `unsupported` maps an operator to (reason, next step); `readers` an operator to those that read
    its results; `shapes` an operator to the shape of its first result. `results` are the operators
    that write what the network gives. Of some kinds of files nobody knows readers and results.
    `unsupported_macs` are the multiply-accumulates of operators that cannot be imported, where
    their shapes are known; `notes` what else a user should know, in sentences. `constant_outputs`
    are outputs that depend on no input.
    """

    name: str
    inputs: Mapping[str, Shape]
    operators: tuple[Operator, ...]
    absorbed: Mapping[str, Absorbed]
    unsupported: Mapping[str, tuple[str, str]]
    readers: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, Shape]
    found: Partitioned
    results: frozenset[str] = frozenset()
    unsupported_macs: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    constant_outputs: tuple[str, ...] = ()

    @cached_property
    def writers(self) -> Mapping[str, tuple[str, ...]]:
        """The operators whose results an operator reads."""
        found: dict[str, list[str]] = {}
        for writer, readers in self.readers.items():
            for reader in readers:
                found.setdefault(reader, []).append(writer)
        return {name: tuple(writers) for name, writers in found.items()}
