"""Counts the multiply-accumulates of one inference for each operator of the source model.

`networks.macs` has the formulas. What depends on weights alone is computed once, when the model is
loaded, and counts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tvm import relax

from tilewright.networks.macs import Operands, count
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of


def macs_by_node(flat: FlatGraph) -> dict[str, int]:
    """Multiply-accumulates of each operator that does any, in elements as the model has them."""
    found: Counter[str] = Counter()
    for binding in flat.bindings:
        if binding.var not in flat.constants:
            found[binding.node] += _macs(binding)
    return {node: macs for node, macs in found.items() if macs}


def _macs(binding: Binding) -> int:
    if binding.shape is None:
        return 0
    shapes = [shape_of(arg) for arg in _operands(binding)]
    equation = str(binding.value.attrs.subscripts) if binding.op == "relax.einsum" else ""
    return count(binding.op, Operands(shapes, binding.shape, equation))


def _operands(binding: Binding) -> Sequence[Any]:
    """The tensors a binding multiplies; an einsum takes them as one tuple."""
    first = binding.args[0] if binding.args else None
    return list(first.fields) if isinstance(first, relax.Tuple) else binding.args
