"""Finds the subgraphs to offload: a convolution or product with what follows it, fused by TVM.

First the chain behind every convolution and product is walked as far as an accelerator's
accumulator could follow (`chain_behind`); the distinct chains become the patterns that TVM's
`FuseOpsByPattern` partitions the module with, longest first. Weights and scales stay arguments
(`bind_constants=False`), so equal subgraphs share one function and a fused call is a call of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.dpl import is_op, wildcard

from networks.errors import ImportFailedError
from networks.fused_calls import FusedCall, Partitioned, Quantisation, Step, StepKind
from networks.relax.bindings import Binding, FlatGraph, is_per_channel, shape_of
from networks.relax.macs import macs_by_node

CONV2D, MATMUL = "relax.nn.conv2d", "relax.matmul"
ADD, RELU, CLIP = "relax.add", "relax.nn.relu", "relax.clip"
QUANTISE, DEQUANTISE = "relax.quantize", "relax.dequantize"
COMPOSITE = "tilewright.accumulate"

# the order an accumulator can take them in; quantisation may stand between two, but before no bias
RANK: Mapping[StepKind, int] = {"bias": 1, "add": 2, "relu": 3, "clip": 3}


@dataclass(frozen=True, eq=False)
class Link:
    """One fused operation: which argument the chain enters by, and what it does."""

    binding: Binding
    position: int
    kind: StepKind


@dataclass(frozen=True)
class Partition:
    """The module with a composite function a distinct subgraph, and the calls of them in order."""

    module: Any
    found: Partitioned


def partition(flat: FlatGraph) -> Partition:
    """Fuse every chain in a flat view of a module that is not yet partitioned.

    Raises `ImportFailedError` where TVM fuses other subgraphs than were found.
    """
    chains = {b.var: chain_behind(flat, b) for b in flat.bindings if is_anchor(flat, b)}
    lengths: dict[Any, int] = {}

    def accept(context: Any) -> bool:
        matched = set(context.matched_bindings)
        anchors = [var for var in chains if var in matched]
        if len(anchors) != 1:
            return False
        length = len(matched) - 1
        if matched != {anchors[0], *(link.binding.var for link in chains[anchors[0]][:length])}:
            return False
        lengths[anchors[0]] = length
        return True

    patterns: list[tuple[Any, ...]] = [
        (COMPOSITE, _pattern(signature), {}, accept) for signature in _signatures(flat, chains)
    ]
    fused = relax.transform.FuseOpsByPattern(patterns, bind_constants=False)(flat.module)
    calls = [
        _fused_call(flat, flat.by_var[anchor], chain[: lengths[anchor]])
        for anchor, chain in chains.items()
        if anchor in lengths
    ]
    if _calls(fused) != len(calls):
        raise ImportFailedError(
            f"TVM fused {_calls(fused)} subgraphs where {len(calls)} were found; "
            "please report this model, it should not happen"
        )
    return Partition(fused, Partitioned(tuple(calls), _constant_nodes(flat), macs_by_node(flat)))


def is_anchor(flat: FlatGraph, binding: Binding) -> bool:
    """Whether a binding is a 2-D convolution or a product, of data with constant weights."""
    if binding.op not in (CONV2D, MATMUL) or binding.shape is None:
        return False
    data, weight = binding.args[:2]
    rank = 4 if binding.op == CONV2D else 2
    plain = binding.op == MATMUL or binding.value.attrs.data_layout == "NCHW"
    shapes = shape_of(data), shape_of(weight)
    constant = flat.is_constant(weight) and not flat.is_constant(data)
    return constant and plain and shapes[0] is not None and len(shapes[1] or ()) == rank


def chain_behind(flat: FlatGraph, anchor: Binding) -> tuple[Link, ...]:
    """The operations after `anchor` that read nothing else that changes but one residual tensor."""
    chain: list[Link] = []
    complete, head = 0, anchor
    channel_axis = 1 if anchor.op == CONV2D else len(anchor.shape or ()) - 1
    while (user := flat.sole_user(head.var)) is not None:
        link = _link(flat, head, user, channel_axis)
        if link is None or not _follows(link, chain):
            break
        chain.append(link)
        if _is_end(link):
            complete = len(chain)
        head = user
    return tuple(chain[: _last_integer(chain[:complete])])


def _last_integer(chain: Sequence[Link]) -> int:
    """The length of `chain` without a sum of dequantised values that nothing quantises again."""
    last = max((i for i, link in enumerate(chain) if link.kind == "quantise"), default=-1)
    open_sum = last >= 0 and any(link.kind == "add" for link in chain[last:])
    return last + 1 if open_sum else len(chain)


def _follows(link: Link, chain: Sequence[Link]) -> bool:
    """Whether an accumulator can do `link` after `chain`; several biases are one."""
    if link.kind == "bias":
        return all(earlier.kind == "bias" for earlier in chain)
    rank = max((RANK.get(earlier.kind, 0) for earlier in chain), default=0)
    return RANK.get(link.kind, rank + 1) > rank


def _is_end(link: Link) -> bool:
    """Whether a chain may stop here: not on a value the accelerator never writes."""
    return link.kind != "dequantise"


def _link(flat: FlatGraph, head: Binding, user: Binding, channel_axis: int) -> Link | None:
    position = next((i for i, arg in enumerate(user.args) if arg.same_as(head.var)), -1)
    if user.op == ADD:
        other = user.args[1 - position]
        if flat.is_constant(other) and is_per_channel(head.shape, shape_of(other), channel_axis):
            return Link(user, position, "bias")
        same = shape_of(other) == head.shape == user.shape
        return Link(user, position, "add") if same else None
    if position != 0:
        return None
    if user.op == RELU:
        return Link(user, 0, "relu")
    if user.op == CLIP:
        low, high = (_number(arg) for arg in user.args[1:])
        return Link(user, 0, "clip") if low == 0 and high is not None and high > 0 else None
    if user.op in (QUANTISE, DEQUANTISE) and all(flat.is_constant(arg) for arg in user.args[1:]):
        return Link(user, 0, "quantise" if user.op == QUANTISE else "dequantise")
    return None


def _number(arg: Any) -> float | None:
    value = getattr(arg, "value", None)
    value = getattr(value, "value", value)
    return float(value) if isinstance(value, (int, float)) else None


Signature = tuple[tuple[str, int], ...]


def _signatures(flat: FlatGraph, chains: Mapping[Any, tuple[Link, ...]]) -> list[Signature]:
    """The distinct chains and their complete beginnings, longest first.

    The beginnings are what remains for a convolution whose residual addition another one took.
    """
    found: set[Signature] = set()
    for anchor, chain in chains.items():
        steps: Signature = ((flat.by_var[anchor].op, 0),)
        found.add(steps)
        for link in chain:
            steps = (*steps, (link.binding.op, link.position))
            if _is_end(link):
                found.add(steps)
    return sorted(found, key=lambda steps: (-len(steps), steps))


def _pattern(signature: Signature) -> Any:
    (anchor, _), *steps = signature
    pattern = is_op(anchor)(wildcard(), wildcard())
    for op, position in steps:
        if op == ADD:
            sides = (pattern, wildcard()) if position == 0 else (wildcard(), pattern)
            pattern = is_op(op)(*sides)
        else:
            pattern = is_op(op)(pattern, varg_default_wildcard=True)
    return pattern


def _calls(module: Any) -> int:
    composites = {
        variable
        for variable, function in module.functions.items()
        if isinstance(function, relax.Function) and function.attrs and "Composite" in function.attrs
    }
    return sum(
        getattr(binding.value, "op", None) in composites
        for block in module["main"].body.blocks
        for binding in block.bindings
    )


def _fused_call(flat: FlatGraph, anchor: Binding, chain: tuple[Link, ...]) -> FusedCall:
    data, weight = anchor.args[:2]
    attrs = anchor.value.attrs
    shape: dict[str, Any] = {}
    if anchor.op == CONV2D:
        shape = {
            "strides": tuple(int(s) for s in attrs.strides),
            "padding": tuple(int(p) for p in attrs.padding),
            "dilation": tuple(int(d) for d in attrs.dilation),
            "groups": int(attrs.groups),
        }
    return FusedCall(
        operator="conv2d" if anchor.op == CONV2D else "dense",
        node=anchor.node,
        data_shape=shape_of(data) or (),
        weight_shape=shape_of(weight) or (),
        output_shape=anchor.shape or (),
        steps=tuple(Step(k.kind, k.binding.node, _quantisation(flat, k.binding)) for k in chain),
        data_quantisation=_quantisation_of(flat, data),
        weight_quantisation=_quantisation_of(flat, weight),
        **shape,
    )


def _quantisation_of(flat: FlatGraph, value: Any) -> Quantisation | None:
    """How a value was dequantised, looking through layout changes; None for a float."""
    binding = flat.by_var.get(value)
    while binding is not None and binding.op == "relax.permute_dims":
        binding = flat.by_var.get(binding.args[0])
    if binding is None:
        return None
    if binding.op == DEQUANTISE:
        return _quantisation(flat, binding)
    return _widened(flat, binding)


def _quantisation(flat: FlatGraph, binding: Binding) -> Quantisation | None:
    if binding.op not in (QUANTISE, DEQUANTISE):
        return None
    integer = binding.var if binding.op == QUANTISE else binding.args[0]
    scale, zero = (_numbers(arg) for arg in binding.args[1:3])
    return Quantisation(str(integer.ty.dtype), scale, tuple(int(z) for z in zero))


def _widened(flat: FlatGraph, binding: Binding) -> Quantisation | None:
    """int32(x) − zero, as integer operators compute it."""
    zero: tuple[float, ...] = (0,)
    if binding.op == "relax.subtract" and flat.is_constant(binding.args[1]):
        source = flat.by_var.get(binding.args[1])
        zero = _numbers(source.args[0] if source is not None else binding.args[1])
        binding = flat.by_var.get(binding.args[0], binding)
    if binding.op != "relax.astype":
        return None
    dtype = str(binding.args[0].ty.dtype)
    return Quantisation(dtype, (), tuple(int(z) for z in zero)) if "int8" in dtype else None


def _numbers(value: Any) -> tuple[float, ...]:
    if not isinstance(value, GenericConst):
        return ()
    return tuple(float(number) for number in value.value.numpy().ravel())


def _constant_nodes(flat: FlatGraph) -> frozenset[str]:
    live = {binding.node for binding in flat.bindings if binding.var not in flat.constants}
    return frozenset({binding.node for binding in flat.bindings} - live)
