"""Finds the layers of a network that have kernels on a processor, with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.networks.compiled.recurrences import recurrences
from tilewright.networks.epilogues import (
    float_obstacle,
    float_steps,
    quantised_scales,
    quantised_steps,
)
from tilewright.networks.fused_calls import FusedCall
from tilewright.networks.offloading.workloads import kernel_workload
from tilewright.networks.relax.bindings import Binding, FlatGraph
from tilewright.networks.relax.constants import value_of
from tilewright.networks.relax.integer_products import (
    dequantisation,
    further_links,
    integer_tensor,
    integer_weights,
    is_known,
)
from tilewright.networks.relax.op_patterns import Link, Match, matches
from tilewright.networks.relax.partition import fused_call
from tilewright.targets.anchor import DType
from tilewright.targets.steps.quantised import packed
from tilewright.targets.workload import Workload

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class KernelLayer:
    """A call of a kernel. `links` are the steps that it does behind its anchor; it reads the
    variables `data` and `added`. `weight` is (o, c/groups, kh, kw) or (out, in), None where it is
    an activation. `constants` are what else its epilogue reads, in its order; values a channel are
    (o,)."""

    call: FusedCall
    match: Match
    links: tuple[Link, ...]
    workload: Workload
    data: Any
    weight: NDArray[Any] | None
    constants: tuple[Array, ...]
    added: tuple[Any, ...]
    scaled_by: tuple[Any, Any] | None = None

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
    """In execution order, multiplied in `dtype` where that has a kernel, but for products of
    recurrences that become one function; `check` raises `WorkloadError` for a workload without
    one."""
    loops = [each for each in recurrences(flat) if each.is_worth_a_function(dtype)]
    inside = frozenset[Any]().union(*(each.inside for each in loops))
    found = (
        _layer(flat, match, check, dtype)
        for match in matches(flat)
        if match.anchor.var not in inside
    )
    return [layer for layer in found if layer is not None]


def _layer(
    flat: FlatGraph, match: Match, check: Callable[[Workload], object], dtype: DType
) -> KernelLayer | None:
    call = fused_call(flat, match)
    if float_obstacle(call) is not None:
        return None
    try:
        workload = kernel_workload(call, check, dtype)
    except WorkloadError:
        return None
    if workload.dequantises:
        return _quantised_layer(flat, match, call, workload)
    links, data = match.chain[: len(float_steps(call))], match.anchor.args[0]
    weight = None
    if call.operator != "matmul":
        known = value_of(flat, match.anchor.args[1])
        if known is None:
            return None
        weight = np.ascontiguousarray(known if call.operator == "conv2d" else known.T, np.float32)
    bias = _bias(flat, links, workload.out_channels)
    if bias is None:
        return None
    constants = (bias,) if any(link.kind == "bias" for link in links) else ()
    return KernelLayer(call, match, links, workload, data, weight, constants, _added(links))


def _quantised_layer(
    flat: FlatGraph, match: Match, call: FusedCall, workload: Workload
) -> KernelLayer | None:
    """One whose kernel reads integers."""
    anchor, steps = match.anchor, quantised_steps(call)
    links = (*match.chain, *further_links(flat, match))[: len(steps)]
    weights, bias = integer_weights(flat, anchor), _bias(flat, links, workload.out_channels)
    of_data, read = call.data_quantisation, dequantisation(flat, anchor.args[0])
    if weights is None or bias is None or of_data is None or read is None:
        return None
    kinds = [step.kind for step in workload.epilogue]
    step, zero, scaled_by = 1.0, 0, None
    if is_known(read):
        step, zero = of_data.scale[0], of_data.zero_point[0]
    else:
        scaled_by = read.args[1], read.args[2]
    numbers = packed(zero, kinds, quantised_scales(steps))
    constants = [numbers, (weights.scale * step).astype(np.float32)]
    if any(link.kind == "bias" for link in links):
        constants.append(bias)
    added = tuple(integer_tensor(flat, var) for var in _added(links))
    return KernelLayer(
        call, match, links, workload, read.args[0], weights.numbers, tuple(constants), added,
        scaled_by,
    )  # fmt: skip


def _bias(flat: FlatGraph, links: Sequence[Link], channels: int) -> Array | None:
    """The sum of all, (o,); None where one is not known."""
    total = np.zeros(channels)
    for link in links:
        if link.kind != "bias":
            continue
        known = value_of(flat, link.binding.args[1 - link.position])
        if known is None:
            return None
        total = total + np.broadcast_to(known.ravel(), channels)
    return total.astype(np.float32)


def _added(links: Sequence[Link]) -> tuple[Any, ...]:
    """The tensors that are added."""
    return tuple(link.binding.args[1 - link.position] for link in links if link.kind == "add")
