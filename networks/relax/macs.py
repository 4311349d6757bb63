"""The multiply-accumulates of one inference, by the operator of the source model they belong to.

Counted are the operators whose work is sums of products: convolutions (1-D to 3-D, grouped,
depthwise, transposed), products of any operands, einsums and attention. What depends on weights
alone is computed once, when the model is loaded, and counts nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax

from networks.relax.bindings import Binding, FlatGraph, shape_of

Shape = tuple[int, ...]


def macs_by_node(flat: FlatGraph) -> dict[str, int]:
    """Multiply-accumulates of each operator that does any, in elements as the model has them."""
    found: Counter[str] = Counter()
    for binding in flat.bindings:
        if binding.var not in flat.constants:
            found[binding.node] += _macs(binding)
    return {node: macs for node, macs in found.items() if macs}


def _macs(binding: Binding) -> int:
    rule = _RULES.get(binding.op)
    shapes = [shape_of(arg) for arg in _operands(binding)]
    known = [shape for shape in shapes if shape is not None]
    if rule is None or binding.shape is None or len(known) < len(shapes):
        return 0
    return rule(binding, known)


def _operands(binding: Binding) -> Sequence[Any]:
    """The tensors a binding multiplies; an einsum takes them as one tuple."""
    first = binding.args[0] if binding.args else None
    return list(first.fields) if isinstance(first, relax.Tuple) else binding.args


def _convolution(binding: Binding, shapes: Sequence[Shape]) -> int:
    """Each output sums over the input channels of its group and the kernel: (O, I/groups, k…)."""
    return math.prod(binding.shape or ()) * math.prod(shapes[1][1:])


def _transposed(_: Binding, shapes: Sequence[Shape]) -> int:
    """Each input goes to the output channels of its group and the kernel: (I, O/groups, k…)."""
    return math.prod(shapes[0]) * math.prod(shapes[1][1:])


def _product(binding: Binding, shapes: Sequence[Shape]) -> int:
    """A matrix product, batched or not."""
    return math.prod(binding.shape or ()) * shapes[0][-1]


def _attention(_: Binding, shapes: Sequence[Shape]) -> int:
    """Scores and their product with the values, all (batch, sequence, heads, size)."""
    batch, rows, heads, size = shapes[0]
    keys, value_size = shapes[1][1], shapes[2][3]
    return batch * heads * rows * keys * (size + value_size)


def _einsum(binding: Binding, shapes: Sequence[Shape]) -> int:
    """TVM compiles one nest of loops over all indices, with a product of all operands inside."""
    text = re.sub(r"\s", "", str(binding.value.attrs.subscripts)).partition("->")[0]
    sizes: dict[str, int] = {}
    for labels, shape in zip(text.split(","), shapes, strict=True):
        for label, size in zip(_spelt_out(labels, len(shape)), shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return math.prod(sizes.values()) * (len(shapes) - 1)


def _spelt_out(labels: str, rank: int) -> list[str]:
    """One label a dimension; those an ellipsis stands for are counted from the right."""
    before, dots, after = labels.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *(f"...{place}" for place in range(hidden, 0, -1)), *after]


_RULES: Mapping[str, Callable[[Binding, Sequence[Shape]], int]] = {
    "relax.nn.conv1d": _convolution,
    "relax.nn.conv2d": _convolution,
    "relax.nn.conv3d": _convolution,
    "relax.nn.conv1d_transpose": _transposed,
    "relax.nn.conv2d_transpose": _transposed,
    "relax.nn.conv3d_transpose": _transposed,
    "relax.matmul": _product,
    "relax.einsum": _einsum,
    "relax.nn.attention": _attention,
    "relax.nn.attention_bias": _attention,
}
