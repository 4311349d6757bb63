"""Partition a Relax module into fused calls, and count multiply-accumulates per operator.

A fused call is an operator, such as a convolution, with the operators after it that can be computed
in the same kernel. `networks.macs` contains the formulas for the counts. Operators that depend only
on weights are computed once when the model is loaded, so they count as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from tilewright.core.tvm_types import DFPattern, IRModule, PatternCheckContext, RelaxExpr
from tilewright.networks.errors import ImportFailedError
from tilewright.networks.fused_calls import PRODUCTS, FusedCall, FusedStep, Partitioned
from tilewright.networks.macs import Operands, count
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of
from tilewright.networks.relax.integer_products import (
    dequantisation,
    further_links,
    integer_tensor,
    weight_scale,
)
from tilewright.networks.relax.op_patterns import (
    ADD,
    CONV2D,
    MATMUL,
    Link,
    Match,
    Signature,
    activations,
    matches,
    quantisation,
    quantisation_of,
    step_of,
    tensor_name,
    upper_bound,
    window,
)

COMPOSITE = "tilewright.accumulate"


@dataclass(frozen=True)
class Partition:
    """A partitioned module.

    Attributes:
        module: the module, with one composite function per distinct subgraph.
        found: the fused calls in order, the constant operators, and the numbers of
            multiply-accumulates.
    """

    module: IRModule
    found: Partitioned


def partition(flat: FlatGraph) -> Partition:
    """Fuse each operator chain of a module into a composite function.

    Args:
        flat: flat view of the module, which must not be partitioned yet.

    Raises:
        ImportFailedError: TVM fused other subgraphs than the ones that `matches` returned.
    """
    matched = matches(flat)
    wanted = {match.vars for match in matched}

    def accept(context: PatternCheckContext) -> bool:
        return frozenset(context.matched_bindings) in wanted

    signatures = sorted({m.signature for m in matched}, key=lambda steps: (-len(steps), steps))
    patterns: list[tuple[Any, ...]] = [(COMPOSITE, _pattern(s), {}, accept) for s in signatures]
    fused = relax.transform.FuseOpsByPattern(patterns, bind_constants=False)(flat.module)
    if _calls(fused) != len(matched):
        raise ImportFailedError(
            f"TVM fused {_calls(fused)} subgraphs, but {len(matched)} were matched; this is "
            "a defect of Tilewright, please report this model"
        )
    calls = tuple(fused_call(flat, match) for match in matched)
    return Partition(fused, Partitioned(calls, _constant_nodes(flat), macs_by_node(flat)))


def _pattern(signature: Signature) -> DFPattern:
    (anchor, _), *steps = signature
    operands = (wildcard(), wildcard()) if anchor in (CONV2D, MATMUL, ADD) else (wildcard(),)
    pattern = is_op(anchor)(*operands, varg_default_wildcard=len(operands) == 1)
    for op, position in steps:
        if op == ADD:
            sides = (pattern, wildcard()) if position == 0 else (wildcard(), pattern)
            pattern = is_op(op)(*sides)
        else:
            pattern = is_op(op)(pattern, varg_default_wildcard=True)
    return pattern


def _calls(module: IRModule) -> int:
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


def fused_call(flat: FlatGraph, match: Match) -> FusedCall:
    """Describe the computation of a match: its shapes, quantisation, window and fused steps.

    The values of the weights are not part of the description.

    Args:
        flat: the graph.
        match: the match.
    """
    anchor, operator = match.anchor, match.operator
    weighted = operator in ("conv2d", "dense", "matmul")
    weight, reads = anchor.args[1] if weighted else None, _reads_integers(flat, match)
    return FusedCall(
        operator=operator,
        node=anchor.node,
        data_shape=shape_of(anchor.args[0]) or (),
        weight_shape=() if weight is None else shape_of(weight) or (),
        output_shape=match.result.shape or (),
        steps=tuple(_step(flat, link) for link in match.links),
        data_quantisation=quantisation_of(flat, anchor.args[0]),
        weight_quantisation=None if weight is None else quantisation_of(flat, weight),
        inputs=tuple(tensor_name(flat, value) for value in activations(flat, match)),
        output=match.result.node,
        reads_integers=reads,
        further=tuple(_step(flat, link) for link in further_links(flat, match)) if reads else (),
        dtype=str(anchor.args[0].ty.dtype),
        **_window(match),
    )


def _reads_integers(flat: FlatGraph, match: Match) -> bool:
    anchor = match.anchor
    if match.operator not in PRODUCTS or dequantisation(flat, anchor.args[0]) is None:
        return False
    return weight_scale(flat, anchor) is not None


def _window(match: Match) -> dict[str, Any]:
    """Return the arguments of `FusedCall` that only convolutions and pools have.

    Args:
        match: the matched operators.

    Returns:
        Kernel size, strides, padding and, for convolutions, dilation and groups; empty for other
        operators.
    """
    attrs = match.anchor.value.attrs
    if match.operator == "conv2d":
        return {
            "kernel": (shape_of(match.anchor.args[1]) or ())[2:],
            "strides": tuple(int(s) for s in attrs.strides),
            "padding": tuple(int(p) for p in attrs.padding),
            "dilation": tuple(int(d) for d in attrs.dilation),
            "groups": int(attrs.groups),
        }
    if match.operator not in ("max_pool", "average_pool"):
        return {}
    read = window(match.anchor)
    return {
        "kernel": read.kernel,
        "strides": read.strides,
        "padding": read.padding,
        "count_include_pad": read.count_include_pad,
    }


def _step(flat: FlatGraph, link: Link) -> FusedStep:
    result, reads = quantisation(link.binding), False
    if link.kind == "add":
        other = link.binding.args[1 - link.position]
        result, reads = quantisation_of(flat, other), integer_tensor(flat, other) is not None
    upper, own = upper_bound(link.binding), step_of(link.binding)
    return FusedStep(link.kind, link.binding.node, result, upper, own, reads)


def _constant_nodes(flat: FlatGraph) -> frozenset[str]:
    live = {binding.node for binding in flat.bindings if binding.var not in flat.constants}
    return frozenset({binding.node for binding in flat.bindings} - live)


def macs_by_node(flat: FlatGraph) -> dict[str, int]:
    """Count the multiply-accumulates of each operator.

    The counts follow from the shapes in the model, without padding to an accelerator's block sizes.

    Args:
        flat: the graph.

    Returns:
        The counts that are not 0, by name of the source operator.
    """
    counts: Counter[str] = Counter()
    for binding in flat.bindings:
        if binding.var not in flat.constants:
            counts[binding.node] += _macs(binding)
    return {node: macs for node, macs in counts.items() if macs}


def _macs(binding: Binding) -> int:
    if binding.shape is None:
        return 0
    shapes = [shape_of(arg) for arg in _operands(binding)]
    equation = str(binding.value.attrs.subscripts) if binding.op == "relax.einsum" else ""
    return count(binding.op, Operands(shapes, binding.shape, equation))


def _operands(binding: Binding) -> Sequence[RelaxExpr]:
    """Return the tensors that an operator multiplies.

    The operands of an einsum, which Relax passes as one tuple, are returned separately.
    """
    first = binding.args[0] if binding.args else None
    return list(first.fields) if isinstance(first, relax.Tuple) else binding.args
