"""Finds the layers of a float network that have kernels, with their numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.networks.extract import float_workload
from tilewright.networks.float32 import obstacle, steps_of
from tilewright.networks.fused_calls import FusedCall
from tilewright.networks.relax.bindings import Binding, FlatGraph
from tilewright.networks.relax.constants import value_of
from tilewright.networks.relax.op_patterns import Link, Match, matches
from tilewright.networks.relax.partition import fused_call
from tilewright.targets.anchor import DType
from tilewright.targets.workload import Workload

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class KernelLayer:
    """A call of a kernel. `links` are the steps that it does behind its anchor; `weight` is (o,
    c/groups, kh, kw) or (out, in), None where it is an activation; `bias` is (o,), None without."""

    call: FusedCall
    match: Match
    links: tuple[Link, ...]
    workload: Workload
    weight: Array | None
    bias: Array | None

    @property
    def result(self) -> Binding:
        """What it writes."""
        return self.links[-1].binding if self.links else self.match.anchor

    @property
    def inside(self) -> frozenset[Any]:
        """The variables that nobody sees any more."""
        bound = (self.match.anchor, *(link.binding for link in self.links))
        return frozenset(binding.var for binding in bound[:-1])

    @property
    def names(self) -> tuple[str, ...]:
        """Of the operators that it stands for."""
        bound = (self.match.anchor, *(link.binding for link in self.links))
        return tuple(dict.fromkeys(binding.node for binding in bound))


def kernel_layers(
    flat: FlatGraph, check: Callable[[Workload], object], dtype: DType = "float32"
) -> list[KernelLayer]:
    """In execution order, multiplied in `dtype` where that has a kernel; `check` raises
    `WorkloadError` for a workload without one."""
    found = (_layer(flat, match, check, dtype) for match in matches(flat))
    return [layer for layer in found if layer is not None]


def _layer(
    flat: FlatGraph, match: Match, check: Callable[[Workload], object], dtype: DType
) -> KernelLayer | None:
    call = fused_call(flat, match)
    if obstacle(call) is not None:
        return None
    try:
        workload = float_workload(call, check, dtype)
    except WorkloadError:
        return None
    links = match.chain[: len(steps_of(call))]
    weight = None
    if call.operator != "matmul":
        known = value_of(flat, match.anchor.args[1])
        if known is None:
            return None
        weight = np.ascontiguousarray(known if call.operator == "conv2d" else known.T, np.float32)
    biases = [
        value_of(flat, link.binding.args[1 - link.position])
        for link in links
        if link.kind == "bias"
    ]
    known_biases = [each for each in biases if each is not None]
    if len(known_biases) < len(biases):
        return None
    bias = None
    if biases:
        each = (np.broadcast_to(b.ravel(), workload.out_channels) for b in known_biases)
        bias = np.sum(list(each), axis=0).astype(np.float32)
    return KernelLayer(call, match, links, workload, weight, bias)
