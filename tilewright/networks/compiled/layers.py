"""Finds the layers of a network that have kernels on a processor, with their numbers.

An activation behind a layer becomes part of it, however a model writes it. Exporters write GELU as
five operators and SiLU as two, in many orders. What counts is the function. All operators that read
nothing but a layer's result and constants are evaluated on some numbers, and compared with the
activations that kernels know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.tvm_types import Array, RelaxExpr, RelaxVar
from tilewright.networks.compiled.recurrences import recurrences
from tilewright.networks.epilogues import (
    float_obstacle,
    float_steps,
    quantised_scales,
    quantised_steps,
)
from tilewright.networks.fused_calls import FusedCall
from tilewright.networks.offloading.workloads import kernel_workload
from tilewright.networks.relax.bindings import Binding, FlatGraph, variables
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
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.steps.float_activations import FUNCTIONS, erf
from tilewright.targets.steps.quantised import packed
from tilewright.targets.workload import Workload

Float32 = NDArray[np.float32]


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
    data: RelaxVar
    weight: Array | None
    constants: tuple[Float32, ...]
    added: tuple[RelaxVar, ...]
    scaled_by: tuple[RelaxExpr, RelaxExpr] | None = None

    @property
    def result(self) -> Binding:
        """What it writes."""
        return self.links[-1].binding if self.links else self.match.anchor

    @property
    def inside(self) -> frozenset[RelaxVar]:
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
    """Return the layers of a network that kernels compute, in execution order.

    Products that belong to a recurrence which becomes one function are left out.

    Args:
        flat: the network.
        check: raises `WorkloadError` for a workload without a kernel.
        dtype: the type to multiply in, where there is a kernel for it.
    """
    loops = [each for each in recurrences(flat) if each.is_worth_a_function(dtype)]
    inside = frozenset[RelaxVar]().union(*(each.inside for each in loops))
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


def _bias(flat: FlatGraph, links: Sequence[Link], channels: int) -> Float32 | None:
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


def _added(links: Sequence[Link]) -> tuple[RelaxVar, ...]:
    """The tensors that are added."""
    return tuple(link.binding.args[1 - link.position] for link in links if link.kind == "add")


# -- activations -------------------------------------------------------------------------------


Floats = NDArray[np.float64]
SAMPLES = np.concatenate([np.linspace(-9, 9, 181), [-50.0, 50.0]])
CLOSE = 2e-6
"""On the samples, by which two functions are one in float32."""
MOST = 10
"""Operators of an activation."""


_Evaluation = Callable[..., Floats]
"""Computes an operator by numpy, from its attributes and its operands."""


def _of_two(function: Callable[[Floats, Floats], Floats]) -> _Evaluation:
    return lambda attrs, one, two: function(one, two)


def _of_one(function: Callable[[Floats], Floats]) -> _Evaluation:
    return lambda attrs, one: function(one)


_NUMPY: Mapping[str, _Evaluation] = {
    "relax.add": _of_two(np.add),
    "relax.subtract": _of_two(np.subtract),
    "relax.multiply": _of_two(np.multiply),
    "relax.divide": _of_two(np.divide),
    "relax.power": _of_two(np.power),
    "relax.maximum": _of_two(np.maximum),
    "relax.minimum": _of_two(np.minimum),
    "relax.negative": _of_one(np.negative),
    "relax.exp": _of_one(np.exp),
    "relax.square": _of_one(np.square),
    "relax.tanh": _of_one(np.tanh),
    "relax.sigmoid": _of_one(FUNCTIONS["sigmoid"]),
    "relax.erf": _of_one(erf),
    "relax.nn.silu": _of_one(FUNCTIONS["swish"]),
    "relax.nn.gelu": _of_one(FUNCTIONS["gelu"]),
    "relax.nn.gelu_tanh": _of_one(FUNCTIONS["gelu_tanh"]),
    "relax.nn.relu": _of_one(lambda x: np.maximum(x, 0)),
    "relax.nn.relu6": _of_one(lambda x: np.clip(x, 0, 6)),
    "relax.clip": lambda attrs, x, low, high: np.clip(x, low, high),
}


def activated_layers(
    flat: FlatGraph, check: Callable[[Workload], object], dtype: DType = "float32"
) -> list[KernelLayer]:
    """Return the layers of `kernel_layers`, each with the activation behind it.

    An activation becomes part of a layer if nothing else reads the layer's result, and if there is
    a kernel for both.

    Args:
        flat: the network.
        check: raises `WorkloadError` for a workload without a kernel.
        dtype: the type to multiply in, where there is a kernel for it.
    """
    return [_with_activation(flat, layer, check) for layer in kernel_layers(flat, check, dtype)]


def _with_activation(
    flat: FlatGraph, layer: KernelLayer, check: Callable[[Workload], object]
) -> KernelLayer:
    steps = layer.workload.epilogue
    if layer.workload.dequantises or any(step.kind in ("min", "max") for step in steps):
        return layer
    for region in _regions(flat, layer.result):
        kind = _kind(flat, layer.result, region)
        if kind is None:
            continue
        try:
            workload = layer.workload.with_steps((*steps, EpilogueOp(kind)))
            check(workload)
        except WorkloadError:  # of integers, say
            return layer
        links = tuple(Link(binding, 0, "activation") for binding in region)
        return replace(layer, links=(*layer.links, *links), workload=workload)
    return layer


def _regions(flat: FlatGraph, source: Binding) -> Iterator[tuple[Binding, ...]]:
    """Groups of operators on the result of a layer alone, in order, the last of which gives all
    that anybody else reads; the largest first."""
    inside: dict[RelaxVar, Binding] = {}
    known = {source.var}
    place = {binding.var: i for i, binding in enumerate(flat.bindings)}
    waiting = list(flat.users.get(source.var, []))
    while waiting and len(inside) < MOST:
        waiting.sort(key=lambda binding: place[binding.var])
        binding = waiting.pop(0)
        if binding.var in inside or not _is_inside(flat, binding, known, source):
            continue
        inside[binding.var] = binding
        known.add(binding.var)
        waiting += flat.users.get(binding.var, [])
    ordered = sorted(inside.values(), key=lambda binding: place[binding.var])
    for length in range(len(ordered), 0, -1):
        region = ordered[:length]
        held = {binding.var for binding in region}
        read = [source.var, *(binding.var for binding in region[:-1])]
        results = set(variables(flat.module["main"].body.body))
        closed = all(user.var in held for var in read for user in flat.users.get(var, []))
        if closed and results.isdisjoint(read):
            yield tuple(region)


def _is_inside(flat: FlatGraph, binding: Binding, known: set[RelaxVar], source: Binding) -> bool:
    """Whether an operator of the list reads known values and lone constants."""
    if binding.op not in _NUMPY or binding.shape != source.shape:
        return False
    return all(arg in known or _constant(flat, arg) is not None for arg in binding.args)


def _constant(flat: FlatGraph, value: RelaxExpr) -> float | None:
    """A constant of one number."""
    number = getattr(value, "value", None)  # of a bound of a clip
    if isinstance(number, (int, float)):
        return float(number)
    array = value_of(flat, value) if flat.is_constant(value) else None
    return float(array.ravel()[0]) if array is not None and array.size == 1 else None


def _kind(flat: FlatGraph, source: Binding, region: Sequence[Binding]) -> str | None:
    """The activation that operators compute together, None for any other function."""
    values: dict[RelaxVar, Floats] = {source.var: SAMPLES}
    with np.errstate(all="ignore"):
        for binding in region:
            args = [values[a] if a in values else _constant(flat, a) for a in binding.args]
            found = _NUMPY[binding.op](binding.value.attrs, *args)
            values[binding.var] = np.broadcast_to(np.asarray(found, np.float64), SAMPLES.shape)
    result = values[region[-1].var]
    for kind, function in FUNCTIONS.items():
        if np.allclose(result, function(SAMPLES), rtol=CLOSE, atol=CLOSE):
            return kind
    return None
