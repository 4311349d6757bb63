"""Find the layers of a network that have kernels on a CPU, with their weights and constants.

An activation function after a layer becomes part of the layer, no matter how the model expresses
it. Exporters write GELU as five operators and SiLU as two, in many different orders. Therefore, the
operators are identified by the function that they compute: a group of operators that reads only the
layer's result and constants is evaluated on sample values, and the outcome is compared with the
activation functions that kernels support.
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
from tilewright.targets.steps.quantised import pack_scales
from tilewright.targets.workload import Workload

Float32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class KernelLayer:
    """A layer that a kernel computes.

    Attributes:
        call: the layer, described in terms of the source model.
        match: the matched operators.
        links: the steps after the anchor (the convolution or product) that are fused into the
            kernel.
        workload: workload of the kernel.
        data: variable that the kernel reads as its data.
        weight: weights of shape (o, c / groups, kh, kw) or (out, in). None if the second operand is
            an activation.
        constants: further constants of the epilogue, in the order in which the kernel reads them. A
            constant per channel has shape (o,).
        added: variables that the epilogue adds to the result.
        scaled_by: scale and zero point of the data if they are only known at run time, otherwise
            None.
    """

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
        """The operator whose result the kernel writes."""
        return self.links[-1].binding if self.links else self.match.anchor

    @property
    def inside(self) -> frozenset[RelaxVar]:
        """Variables of values that exist only inside the kernel."""
        bound = (self.match.anchor, *(link.binding for link in self.links))
        return frozenset(binding.var for binding in bound[:-1])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operators that the layer replaces."""
        bound = (self.match.anchor, *(link.binding for link in self.links))
        return tuple(dict.fromkeys(binding.node for binding in bound))


def kernel_layers(
    flat: FlatGraph, check: Callable[[Workload], object], dtype: DType = "float32"
) -> list[KernelLayer]:
    """Return the layers of a network that kernels compute, in execution order.

    Matrix products that belong to a recurrence are left out if the recurrence is compiled into one
    function.

    Args:
        flat: the network.
        check: function that raises `WorkloadError` for a workload without a kernel.
        dtype: type in which to multiply, where a kernel exists for it.
    """
    loops = [
        recurrence for recurrence in recurrences(flat) if recurrence.is_worth_a_function(dtype)
    ]
    inside = frozenset[RelaxVar]().union(*(recurrence.inside for recurrence in loops))
    candidates = (
        _layer(flat, match, check, dtype)
        for match in matches(flat)
        if match.anchor.var not in inside
    )
    return [layer for layer in candidates if layer is not None]


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
    return KernelLayer(
        call, match, links, workload, data, weight, constants, _added_variables(links)
    )


def _quantised_layer(
    flat: FlatGraph, match: Match, call: FusedCall, workload: Workload
) -> KernelLayer | None:
    """Convert a matched quantised layer to a layer whose kernel reads integers.

    Args:
        flat: the network.
        match: the matched operators.
        call: the same layer, described in terms of the source model.
        workload: workload of the kernel.

    Returns:
        The layer, or None if its weights, bias or quantisation are not known at compile time.
    """
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
    numbers = pack_scales(zero, kinds, quantised_scales(steps))
    constants = [numbers, (weights.scale * step).astype(np.float32)]
    if any(link.kind == "bias" for link in links):
        constants.append(bias)
    added = tuple(integer_tensor(flat, var) for var in _added_variables(links))
    return KernelLayer(
        call, match, links, workload, read.args[0], weights.numbers, tuple(constants), added,
        scaled_by,
    )  # fmt: skip


def _bias(flat: FlatGraph, links: Sequence[Link], channels: int) -> Float32 | None:
    """Return the sum of all biases of a layer, float32 of shape (channels,).

    Args:
        flat: the network.
        links: the steps that are fused into the layer. Those of kind `bias` are added up.
        channels: number of output channels.

    Returns:
        The sum, or None if a bias is not a known constant.
    """
    total = np.zeros(channels)
    for link in links:
        if link.kind != "bias":
            continue
        known = value_of(flat, link.binding.args[1 - link.position])
        if known is None:
            return None
        total = total + np.broadcast_to(known.ravel(), channels)
    return total.astype(np.float32)


def _added_variables(links: Sequence[Link]) -> tuple[RelaxVar, ...]:
    """Return the variables that the `add` steps of a layer add to its result.

    Args:
        links: the steps that are fused into the layer.
    """
    return tuple(link.binding.args[1 - link.position] for link in links if link.kind == "add")


# -- activations -------------------------------------------------------------------------------


Floats = NDArray[np.float64]
SAMPLES = np.concatenate([np.linspace(-9, 9, 181), [-50.0, 50.0]])
"""Arguments at which a chain of operators is compared with known activation functions."""
CLOSE = 2e-6
"""Relative and absolute tolerance within which two functions count as equal on `SAMPLES`. It allows
for rounding errors of float32."""
MOST = 10
"""Maximum number of operators of which an activation may be composed."""


_Evaluation = Callable[..., Floats]
"""Function that evaluates an operator with NumPy. Its arguments are the operator's attributes and
operands."""


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
    """Return the layers of a network that kernels compute, with the activations after them.

    An activation function becomes part of a layer if nothing else reads the layer's result, and if
    there is a kernel that computes both.

    Args:
        flat: the network.
        check: function that raises `WorkloadError` for a workload without a kernel.
        dtype: type in which to multiply, where a kernel exists for it.

    Returns:
        The layers of `kernel_layers`, extended by activation functions.
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
        except WorkloadError:  # for example, integer workloads do not support the activation
            return layer
        links = tuple(Link(binding, 0, "activation") for binding in region)
        return replace(layer, links=(*layer.links, *links), workload=workload)
    return layer


def _regions(flat: FlatGraph, source: Binding) -> Iterator[tuple[Binding, ...]]:
    """Yield groups of operators that could be the activation function after a layer.

    All operators of a group depend only on the layer's result and on constants, and only the last
    operator's result is read outside the group. The largest group comes first.

    Args:
        flat: the network.
        source: the operator that writes the layer's result.

    Yields:
        The operators of a group, in execution order.
    """
    inside: dict[RelaxVar, Binding] = {}
    known = {source.var}
    position = {binding.var: i for i, binding in enumerate(flat.bindings)}
    waiting = list(flat.users.get(source.var, []))
    while waiting and len(inside) < MOST:
        waiting.sort(key=lambda binding: position[binding.var])
        binding = waiting.pop(0)
        if binding.var in inside or not _is_inside(flat, binding, known, source):
            continue
        inside[binding.var] = binding
        known.add(binding.var)
        waiting += flat.users.get(binding.var, [])
    ordered = sorted(inside.values(), key=lambda binding: position[binding.var])
    for length in range(len(ordered), 0, -1):
        region = ordered[:length]
        members = {binding.var for binding in region}
        read = [source.var, *(binding.var for binding in region[:-1])]
        results = set(variables(flat.module["main"].body.body))
        closed = all(user.var in members for var in read for user in flat.users.get(var, []))
        if closed and results.isdisjoint(read):
            yield tuple(region)


def _is_inside(flat: FlatGraph, binding: Binding, known: set[RelaxVar], source: Binding) -> bool:
    """Return whether an operator can belong to the activation function after a layer.

    The operator must be elementwise. It may only read values that belong to the activation function
    so far, and scalar constants.

    Args:
        flat: the network.
        binding: the operator.
        known: variables of the activation function so far.
        source: the operator that writes the layer's result.
    """
    if binding.op not in _NUMPY or binding.shape != source.shape:
        return False
    return all(arg in known or _constant(flat, arg) is not None for arg in binding.args)


def _constant(flat: FlatGraph, value: RelaxExpr) -> float | None:
    """Return the value of a scalar constant.

    Args:
        flat: the network.
        value: an expression or a plain value, such as the bound of a clip.

    Returns:
        The value, or None if `value` is not a scalar constant.
    """
    number = getattr(value, "value", None)  # bounds of a clip are plain values
    if isinstance(number, (int, float)):
        return float(number)
    array = value_of(flat, value) if flat.is_constant(value) else None
    return float(array.ravel()[0]) if array is not None and array.size == 1 else None


def _kind(flat: FlatGraph, source: Binding, region: Sequence[Binding]) -> str | None:
    """Return the name of the activation function that a group of operators computes, or None.

    Args:
        flat: the network.
        source: the operator that writes the argument of the activation function.
        region: the operators in execution order. The last operator writes the result.
    """
    values: dict[RelaxVar, Floats] = {source.var: SAMPLES}
    with np.errstate(all="ignore"):
        for binding in region:
            args = [values[a] if a in values else _constant(flat, a) for a in binding.args]
            computed = _NUMPY[binding.op](binding.value.attrs, *args)
            values[binding.var] = np.broadcast_to(np.asarray(computed, np.float64), SAMPLES.shape)
    result = values[region[-1].var]
    for kind, function in FUNCTIONS.items():
        if np.allclose(result, function(SAMPLES), rtol=CLOSE, atol=CLOSE):
            return kind
    return None
