"""Prove along which dynamic dimensions an input may be padded without changing the outputs.

A compiled library has fixed sizes. A smaller input is padded with zeros at the end, and the outputs
are cut to the size that belongs to the input. This is correct if every tensor of the padded network
has a *correct prefix*. That means: along each axis that grows with the dimension, the first
elements of the tensor equal the elements of the same tensor in the unpadded network. The elements
after the prefix must not influence it.

The proof checks one operator after another. For each operator type, a rule states when the result
has a correct prefix, provided that the inputs have one. The proof compares the normal forms of the
model at several sizes of the dimension, in which shape arithmetic is already evaluated. A constant
that depends on the size must itself have a correct prefix. The proof fails at an operator without a
rule, and at an operator that combines elements along the dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tilewright.core.errors import TilewrightError
from tilewright.networks.onnx.files import is_stub
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, NormalGraph, Shape, data_inputs
from tilewright.networks.onnx.normalise import normalise
from tilewright.networks.onnx.static_shapes import shapes_at
from tilewright.targets.layer import NamedShape

ELEMENTWISE = frozenset((
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization",
    "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu",
    "Clip", "Cos", "Cosh", "DequantizeLinear", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp",
    "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf",
    "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul",
    "Neg", "Not", "Or", "PRelu", "Pow", "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu",
    "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tan",
    "Tanh", "ThresholdedRelu", "Where", "Xor",
))  # fmt: skip
"""Operators that compute each output element only from the input elements at the same position."""
MOVES = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze"))
"""Operators that change only the shape of a tensor."""
REDUCTIONS = frozenset((
    "ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
))  # fmt: skip
"""Operators that reduce a tensor along some axes."""
POOLS = frozenset((
    "AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "InstanceNormalization",
    "LpPool", "MaxPool", "Resize",
))  # fmt: skip
"""Operators that combine elements along all axes from the third one on."""
ALONG_ONE = frozenset(("Concat", "Hardmax", "LogSoftmax", "LpNormalization", "Softmax", "Split"))
"""Operators that combine elements along the axis that their attribute `axis` states."""
FROM_AXIS = frozenset(("LayerNormalization", "RMSNormalization"))
"""Operators that combine elements along the axis that their attribute `axis` states and along all
axes after it."""


class _NotProved(Exception):
    """Raised if padding may change the outputs. The message states the reason."""


def padding_obstacles(
    model: onnx.ModelProto, inputs: Mapping[str, NamedShape], sizes: Mapping[str, Sequence[int]]
) -> dict[str, str]:
    """Return, for each dynamic dimension, the reason why inputs must not be padded along it.

    Args:
        model: a model with dynamic dimensions. Weights may lack their data.
        inputs: shape of each input, with names for dynamic axes.
        sizes: sizes that libraries are compiled for, by dimension name.

    Returns:
        The reason by dimension name; "" if inputs may be padded along the dimension.
    """
    return {name: _obstacle(model, inputs, sizes, name) for name in sizes}


def _obstacle(
    model: onnx.ModelProto, inputs: Mapping[str, NamedShape], sizes: Mapping[str, Sequence[int]],
    name: str,
) -> str:  # fmt: skip
    most, least = max(sizes[name]), min(sizes[name])
    # Two adjacent sizes reveal remainders and quotients of the size; the others show growth.
    probes = sorted({most, most - 1, least, (most + 1) // 2 | 1} - {0}, reverse=True)
    probes = [size for size in probes if size <= most]
    try:
        graphs = []
        for size in probes:
            chosen = {key: (max(listed),) for key, listed in sizes.items()} | {name: (size,)}
            (at,) = shapes_at(inputs, chosen)
            graphs.append(normalise(model, at.shapes))
        _Proof(graphs, probes, inputs, name).run()
    except _NotProved as reason:
        return str(reason)
    except TilewrightError as error:
        return f"the model cannot be written for an arbitrary size ({error})"
    return ""


@dataclass
class _Proof:
    """Proof that padding one dimension does not change the outputs of a graph.

    It compares the graph at several sizes of the dimension.

    Attributes:
        graphs: the graph at each size, the largest size first.
        probes: the sizes, in the same order.
        named: shape of each input, with names for dynamic axes.
        dimension: name of the dimension.
        right: names of the tensors that were shown to have a correct prefix.
        zeros: names of the tensors that were shown to be zero after the prefix.
    """

    graphs: Sequence[NormalGraph]
    probes: Sequence[int]
    named: Mapping[str, NamedShape]
    dimension: str
    right: set[str] = field(default_factory=set)
    zeros: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.shapes = [graph.shapes() for graph in self.graphs]
        self.tensors = [graph.tensors() for graph in self.graphs]
        self.opset = max(
            (o.version for o in self.graphs[0].model.opset_import if o.domain in STANDARD_DOMAINS),
            default=13,
        )

    def run(self) -> None:
        first, *other_forms = ([_form(node) for node in graph.graph.node] for graph in self.graphs)
        if any(other != first for other in other_forms):
            raise _NotProved("its operators depend on the size")
        self.right.update(name for name in self.tensors[0] if self._is_right_constant(name))
        for info in data_inputs(self.graphs[0].model):
            self.right.add(info.name)
            self.zeros.add(info.name)
        for node in self.graphs[0].graph.node:
            self._check(node)
        for output in self.graphs[0].graph.output:
            self.growing_axes(output.name)
            if output.name not in self.right:
                raise _NotProved(f"output '{output.name}' depends on the size")

    def sizes(self, name: str) -> list[Shape]:
        """Return the shape of a tensor at each size of the dimension, the largest size first.

        Args:
            name: name of the tensor.

        Raises:
            _NotProved: the shape is only known at run time.
        """
        known = [shapes.get(name) for shapes in self.shapes]
        if any(shape is None for shape in known):
            raise _NotProved(f"the shape of '{name}' is only known when the model runs")
        return [shape for shape in known if shape is not None]

    def growing_axes(self, name: str) -> list[int]:
        """Return the axes of a tensor that grow with the dimension.

        The length of a growing axis is proportional to the size of the dimension.

        Args:
            name: name of the tensor.

        Raises:
            _NotProved: the number of axes depends on the size, or an axis changes without being
                proportional.
        """
        sizes = self.sizes(name)
        if len({len(shape) for shape in sizes}) > 1:
            raise _NotProved(f"the rank of '{name}' depends on the size")
        axes = []
        for axis, lengths in enumerate(zip(*sizes, strict=True)):
            if len(set(lengths)) == 1:
                continue
            shares = {
                Fraction(length, size) for length, size in zip(lengths, self.probes, strict=True)
            }
            if len(shares) > 1:
                raise _NotProved(f"an axis of '{name}' does not grow in proportion to the size")
            axes.append(axis)
        return axes

    def constants(self, name: str) -> list[NDArray[Any]] | None:
        """Return the values of a constant in the graph of each size, the largest size first.

        Args:
            name: name of the tensor.

        Returns:
            The values, or None if the tensor is not a constant with data.
        """
        known = [tensors.get(name) for tensors in self.tensors]
        if any(tensor is None or is_stub(tensor) for tensor in known):
            return None
        return [numpy_helper.to_array(tensor) for tensor in known if tensor is not None]

    def constant(self, name: str) -> NDArray[Any] | None:
        """Return the values of a constant that is the same at all sizes.

        Args:
            name: name of the tensor.

        Returns:
            The values, or None if the tensor is not constant or depends on the size.
        """
        values = self.constants(name)
        if values is None or any(not np.array_equal(values[0], value) for value in values[1:]):
            return None
        return values[0]

    def _is_right_constant(self, name: str) -> bool:
        if any(name not in tensors for tensors in self.tensors):
            return False
        values = self.constants(name)
        if values is None:  # weights without data, which do not depend on the size
            return len({tuple(tensors[name].dims) for tensors in self.tensors}) == 1
        whole = values[0]
        for value in values[1:]:
            if value.ndim != whole.ndim or any(
                size > most for size, most in zip(value.shape, whole.shape, strict=True)
            ):
                return False
            if not np.array_equal(whole[tuple(map(slice, value.shape))], value):
                return False
        return True

    def _check(self, node: onnx.NodeProto) -> None:
        read = [name for name in node.input if name]
        rule = RULES.get(node.op_type) if node.domain in STANDARD_DOMAINS else None
        checked = read if rule is None else [read[0], *_other_data_inputs(node, read)]
        wrong = [name for name in checked if name not in self.right]
        grows = [name for name in checked if self.growing_axes(name)]
        written = [name for name in node.output if name]
        if not grows and not wrong and not any(self.growing_axes(name) for name in written):
            self.right.update(written)
            return
        if wrong:
            raise _NotProved(f"'{wrong[0]}', which {_describe(node)} reads, depends on the size")
        if rule is None:
            raise _NotProved(f"{_describe(node)} may not keep the padding separate")
        rule(self, node)
        for name in written:
            self.growing_axes(name)
        self.right.update(written)
        kept = MOVES | {"Cast", "Identity", "Transpose", "Dropout"}
        if node.op_type in kept and read[0] in self.zeros:
            self.zeros.add(written[0])


Rule = Callable[[_Proof, onnx.NodeProto], None]
"""Function that checks one operator. It raises `_NotProved` if a result of the operator may lack a
correct prefix (see the documentation of this module)."""


def _form(node: onnx.NodeProto) -> tuple[object, ...]:
    """Return an operator's name, type, tensors and attributes.

    They must be the same at each size of the dimension.
    """
    attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
    return node.name, node.op_type, tuple(node.input), tuple(node.output), tuple(attributes)


def _other_data_inputs(node: onnx.NodeProto, read: Sequence[str]) -> list[str]:
    """Return the inputs of an operator that carry data, except the first one.

    Args:
        node: the operator.
        read: names of the operator's inputs. Inputs that only state sizes or axes are left out.
    """
    shaped = {"Slice", "Expand", "Tile", "Pad", "CumSum", "OneHot", "Resize", *MOVES, *REDUCTIONS}
    return [] if node.op_type in shaped else list(read[1:])


def _describe(node: onnx.NodeProto) -> str:
    return f"operator '{node.name}' ({node.op_type})"


def _attribute(node: onnx.NodeProto, name: str, otherwise: Any) -> Any:
    attribute = next((a for a in node.attribute if a.name == name), None)
    return otherwise if attribute is None else onnx.helper.get_attribute_value(attribute)


def _refuse_along(proof: _Proof, node: onnx.NodeProto, axes: Sequence[int], place: int = 0) -> None:
    """Check that none of the given axes of an input grows with the dimension.

    Args:
        proof: the proof.
        node: the operator that combines elements along the axes.
        axes: the axes.
        place: index of the input.

    Raises:
        _NotProved: one of the axes grows.
    """
    name = node.input[place]
    rank = len(proof.sizes(name)[0])
    if {axis % rank for axis in axes if rank}.intersection(proof.growing_axes(name)):
        raise _NotProved(f"{_describe(node)} combines elements along it")


def _check_elementwise(proof: _Proof, node: onnx.NodeProto) -> None:
    if node.op_type in ("Div", "Mod") and proof.growing_axes(node.input[1]):
        kinds = proof.graphs[0].types()
        if kinds.get(node.input[1]) != onnx.TensorProto.FLOAT:
            raise _NotProved(f"{_describe(node)} could divide integers by padding")
    if node.op_type == "BatchNormalization" and _attribute(node, "training_mode", 0):
        raise _NotProved(f"{_describe(node)} is in training mode")


def _check_along_axis(proof: _Proof, node: onnx.NodeProto) -> None:
    usual = {"Concat": 0, "Split": 0, "LpNormalization": -1}
    old = proof.opset < 13
    axis = int(_attribute(node, "axis", usual.get(node.op_type, 1 if old else -1)))
    softmax = node.op_type in ("Softmax", "LogSoftmax", "Hardmax")
    for place, name in enumerate(node.input[:1] if node.op_type != "Concat" else node.input):
        rank = len(proof.sizes(name)[0])
        axes = range(axis % rank, rank) if softmax and old else [axis]
        _refuse_along(proof, node, list(axes), place)


def _check_from_axis(proof: _Proof, node: onnx.NodeProto) -> None:
    rank = len(proof.sizes(node.input[0])[0])
    _refuse_along(proof, node, range(int(_attribute(node, "axis", -1)) % rank, rank))


def _check_spatial(proof: _Proof, node: onnx.NodeProto) -> None:
    _refuse_along(proof, node, range(2, len(proof.sizes(node.input[0])[0])))


def _check_all_but_first(proof: _Proof, node: onnx.NodeProto) -> None:
    _refuse_along(proof, node, range(1, len(proof.sizes(node.input[0])[0])))


def _check_reduction(proof: _Proof, node: onnx.NodeProto) -> None:
    rank = len(proof.sizes(node.input[0])[0])
    axes = _attribute(node, "axes", None)
    if node.op_type in ("ArgMax", "ArgMin"):
        axes = [_attribute(node, "axis", 0)]
    elif len(node.input) > 1 and node.input[1]:
        known = proof.constant(node.input[1])
        if known is None:
            raise _NotProved(f"the axes of {_describe(node)} are not constant")
        axes = known.tolist()
    if not axes:
        axes = [] if _attribute(node, "noop_with_empty_axes", 0) else range(rank)
    if node.op_type == "ReduceSum" and node.input[0] in proof.zeros:
        return  # padding with zeros does not change the sum
    _refuse_along(proof, node, list(axes))


def _check_product(proof: _Proof, node: onnx.NodeProto) -> None:
    if any(len(proof.sizes(name)[0]) < 2 for name in node.input[:2]):
        raise _NotProved(f"{_describe(node)} reads a vector")
    inner = [-1, -2]
    if node.op_type == "Gemm":
        inner = [
            0 if _attribute(node, "transA", 0) else 1,
            1 if _attribute(node, "transB", 0) else 0,
        ]
    for place, axis in enumerate(inner):
        _refuse_along(proof, node, [axis], place)


def _check_convolution(proof: _Proof, node: onnx.NodeProto) -> None:
    data = proof.growing_axes(node.input[0])
    if any(proof.growing_axes(name) for name in node.input[1:] if name) or 1 in data:
        raise _NotProved(f"{_describe(node)} combines elements along it")
    spatial = len(proof.sizes(node.input[0])[0]) - 2
    kernel = proof.sizes(node.input[1])[0][2:]
    strides = _attribute(node, "strides", [1] * spatial)
    pads = _attribute(node, "pads", [0] * 2 * spatial)
    automatic = _attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    for axis in data:
        if axis == 0:
            continue
        place = axis - 2
        same = [
            before[axis] == behind[axis]
            for before, behind in zip(
                proof.sizes(node.input[0]), proof.sizes(node.output[0]), strict=True
            )
        ]
        # Either no later element is read, or later elements are zeros, like the convolution's
        # padding.
        alone = kernel[place] == 1 and not pads[place]
        causal = not pads[place + spatial]
        if strides[place] != 1 or automatic or not all(same):
            raise _NotProved(f"{_describe(node)} changes its length")
        if not (alone or causal or node.input[0] in proof.zeros):
            raise _NotProved(f"{_describe(node)} combines elements along it")


def _check_reshape(proof: _Proof, node: onnx.NodeProto) -> None:
    """Check that a Reshape of padded data keeps the padding at the end of each growing axis.

    For each axis that grows with the dimension, the number of elements before it must be the same
    in input and output.

    Raises:
        _NotProved: this is not the case.
    """
    before, behind = proof.growing_axes(node.input[0]), proof.growing_axes(node.output[0])
    pairs = zip(proof.sizes(node.input[0]), proof.sizes(node.output[0]), strict=True)
    for shape_before, shape_behind in pairs:
        if [prod(shape_before[:axis]) for axis in before] != [
            prod(shape_behind[:axis]) for axis in behind
        ]:
            raise _NotProved(f"{_describe(node)} moves padding between other elements")


def _check_transpose(proof: _Proof, node: onnx.NodeProto) -> None:
    """Accept every Transpose, because it keeps the order of elements along each axis."""


def _check_slice(proof: _Proof, node: onnx.NodeProto) -> None:
    names = list(node.input[1:])
    if not names:
        raise _NotProved(f"{_describe(node)} gives its bounds as attributes")
    rank = len(proof.sizes(node.input[0])[0])
    known = [proof.constants(name) if name else None for name in names]
    starts = known[0]
    axes = known[2] if len(known) > 2 else None
    steps = known[3] if len(known) > 3 else None
    computed = [name for name, value in zip(names, known, strict=True) if name and value is None]
    if starts is None or computed:
        raise _NotProved(f"the bounds of {_describe(node)} are not constant")
    grows = {*proof.growing_axes(node.input[0]), *proof.growing_axes(node.output[0])}
    for probe, begin in enumerate(starts):
        listed = range(len(begin)) if axes is None else axes[probe]
        strides = [1] * len(begin) if steps is None else steps[probe]
        for axis, start, stride in zip(listed, begin, strides, strict=True):
            if int(axis) % rank in grows and (start != 0 or stride != 1):
                raise _NotProved(f"{_describe(node)} slices it at the front")
            if int(axis) % rank not in grows and start != starts[0][list(listed).index(axis)]:
                raise _NotProved(f"{_describe(node)} begins at an index that depends on the size")


def _check_expand(proof: _Proof, node: onnx.NodeProto) -> None:
    """Accept every Expand, because all repeated values are equal."""


def _check_tile(proof: _Proof, node: onnx.NodeProto) -> None:
    repeats = proof.constant(node.input[1])
    if repeats is None or any(repeats[axis] != 1 for axis in proof.growing_axes(node.input[0])):
        raise _NotProved(f"{_describe(node)} repeats it")


def _check_pad(proof: _Proof, node: onnx.NodeProto) -> None:
    amounts = proof.constant(node.input[1]) if len(node.input) > 1 else None
    axes = len(node.input) > 3 and node.input[3]
    rank = len(proof.sizes(node.input[0])[0])
    if (
        amounts is None
        or axes
        or any(amounts[axis] or amounts[axis + rank] for axis in proof.growing_axes(node.input[0]))
    ):
        raise _NotProved(f"{_describe(node)} pads it")


def _check_gather(proof: _Proof, node: onnx.NodeProto) -> None:
    axis = int(_attribute(node, "axis", 0))
    rank = len(proof.sizes(node.input[0])[0])
    if axis % rank in proof.growing_axes(node.input[0]):
        places = proof.constant(node.input[1])
        if places is None or places.any():
            raise _NotProved(f"{_describe(node)} selects elements from it")
    if proof.growing_axes(node.input[1]) and not (
        node.input[1] in proof.zeros or proof.constants(node.input[1]) is not None
    ):
        raise _NotProved(f"{_describe(node)} could use padding as an index")


def _check_cumulative_sum(proof: _Proof, node: onnx.NodeProto) -> None:
    if _attribute(node, "reverse", 0):
        raise _NotProved(f"{_describe(node)} counts from the end")


def _check_one_hot(proof: _Proof, node: onnx.NodeProto) -> None:
    if any(proof.constant(name) is None for name in node.input[1:]):
        raise _NotProved(f"{_describe(node)} depends on the size")


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _check_elementwise),
    **dict.fromkeys(MOVES, _check_reshape),
    **dict.fromkeys(REDUCTIONS, _check_reduction),
    **dict.fromkeys(POOLS, _check_spatial),
    **dict.fromkeys(ALONG_ONE, _check_along_axis),
    **dict.fromkeys(FROM_AXIS, _check_from_axis),
    "Conv": _check_convolution,
    "CumSum": _check_cumulative_sum,
    "Expand": _check_expand,
    "Gather": _check_gather,
    "Gemm": _check_product,
    "GroupNormalization": _check_all_but_first,
    "LRN": _check_all_but_first,
    "MatMul": _check_product,
    "OneHot": _check_one_hot,
    "Pad": _check_pad,
    "Slice": _check_slice,
    "Tile": _check_tile,
    "Transpose": _check_transpose,
}
"""Rules by operator type. A rule checks that the results of an operator have a correct prefix if
the inputs have one."""
