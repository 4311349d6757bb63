"""Proves along which dynamic dimensions an input may be padded without a change of the outputs.

A library has fixed sizes. An input of a smaller size is padded with zeros behind it, and the
outputs are cut. That is right if every tensor of the network is *right in front*: what the network
of the exact size computes is the first part of what the padded network computes, along each axis
that grows with the dimension. Whatever lies behind that part must not reach it.

The proof goes operator by operator, with a rule for each operator that is known to keep this
property. It compares the normal forms of the model at several sizes of the dimension, so shape
arithmetic is folded: a constant that depends on the size must be the first part of the larger one.
An operator without a rule, or one that mixes numbers along the dimension, ends the proof.
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
MOVES = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze"))
REDUCTIONS = frozenset((
    "ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
))  # fmt: skip
POOLS = frozenset((
    "AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "InstanceNormalization",
    "LpPool", "MaxPool", "Resize",
))  # fmt: skip
"""Operators that mix numbers along all axes from the third one on."""
ALONG_ONE = frozenset(("Concat", "Hardmax", "LogSoftmax", "LpNormalization", "Softmax", "Split"))
"""Operators that mix numbers along their attribute `axis`."""
FROM_AXIS = frozenset(("LayerNormalization", "RMSNormalization"))
"""Operators that mix numbers along all axes from their attribute `axis` on."""


class _NotProved(Exception):
    """The outputs may change with the padding, for the reason that the message says."""


def padding_obstacles(
    model: onnx.ModelProto, inputs: Mapping[str, NamedShape], sizes: Mapping[str, Sequence[int]]
) -> dict[str, str]:
    """Return by dynamic dimension why inputs must not be padded along it, "" if they may.

    Args:
        model: a model with dynamic dimensions; weights without data will do.
        inputs: the shape of each input, with names for dynamic axes.
        sizes: the sizes of each dimension that libraries are compiled for.
    """
    return {name: _obstacle(model, inputs, sizes, name) for name in sizes}


def _obstacle(
    model: onnx.ModelProto, inputs: Mapping[str, NamedShape], sizes: Mapping[str, Sequence[int]],
    name: str,
) -> str:  # fmt: skip
    most, least = max(sizes[name]), min(sizes[name])
    # Two neighbours tell remainders and quotients of the size from constants; others show growth.
    probes = sorted({most, most - 1, least, (most + 1) // 2 | 1} - {0}, reverse=True)
    probes = [size for size in probes if size <= most]
    try:
        graphs = []
        for size in probes:
            chosen = {key: (max(each),) for key, each in sizes.items()} | {name: (size,)}
            (at,) = shapes_at(inputs, chosen)
            graphs.append(normalise(model, at.shapes))
        _Proof(graphs, probes, inputs, name).run()
    except _NotProved as reason:
        return str(reason)
    except TilewrightError as error:
        return f"the model has no form for every size of it ({error})"
    return ""


@dataclass
class _Proof:
    """A proof about the same graph at several sizes of a dimension, the largest first."""

    graphs: Sequence[NormalGraph]
    probes: Sequence[int]
    named: Mapping[str, NamedShape]
    dimension: str
    right: set[str] = field(default_factory=set)
    """Tensors that are right in front."""
    zeros: set[str] = field(default_factory=set)
    """Tensors that are zero behind."""

    def __post_init__(self) -> None:
        self.shapes = [graph.shapes() for graph in self.graphs]
        self.tensors = [graph.tensors() for graph in self.graphs]
        self.opset = max(
            (o.version for o in self.graphs[0].model.opset_import if o.domain in STANDARD_DOMAINS),
            default=13,
        )

    def run(self) -> None:
        first, *others = ([_form(node) for node in graph.graph.node] for graph in self.graphs)
        if any(other != first for other in others):
            raise _NotProved("its operators depend on the size")
        self.right.update(name for name in self.tensors[0] if self._is_right_constant(name))
        for info in data_inputs(self.graphs[0].model):
            self.right.add(info.name)
            self.zeros.add(info.name)
        for node in self.graphs[0].graph.node:
            self._check(node)
        for output in self.graphs[0].graph.output:
            self.growing(output.name)
            if output.name not in self.right:
                raise _NotProved(f"output '{output.name}' depends on the size")

    def sizes(self, name: str) -> list[Shape]:
        """Return the shape of a tensor at each size."""
        found = [shapes.get(name) for shapes in self.shapes]
        if any(shape is None for shape in found):
            raise _NotProved(f"the shape of '{name}' is known only when the model runs")
        return [shape for shape in found if shape is not None]

    def growing(self, name: str) -> list[int]:
        """Return the axes of a tensor that grow in proportion to the dimension. Raises `_NotProved`
        if an axis changes in another way."""
        sizes = self.sizes(name)
        if len({len(shape) for shape in sizes}) > 1:
            raise _NotProved(f"the rank of '{name}' depends on the size")
        found = []
        for axis, lengths in enumerate(zip(*sizes, strict=True)):
            if len(set(lengths)) == 1:
                continue
            shares = {
                Fraction(length, size) for length, size in zip(lengths, self.probes, strict=True)
            }
            if len(shares) > 1:
                raise _NotProved(f"an axis of '{name}' does not grow in proportion to the size")
            found.append(axis)
        return found

    def constants(self, name: str) -> list[NDArray[Any]] | None:
        """Return the value of a constant at each size, or None for anything else."""
        found = [tensors.get(name) for tensors in self.tensors]
        if any(tensor is None or is_stub(tensor) for tensor in found):
            return None
        return [numpy_helper.to_array(tensor) for tensor in found if tensor is not None]

    def constant(self, name: str) -> NDArray[Any] | None:
        """Return a constant that is the same at each size, or None for anything else."""
        values = self.constants(name)
        if values is None or any(not np.array_equal(values[0], each) for each in values[1:]):
            return None
        return values[0]

    def _is_right_constant(self, name: str) -> bool:
        if any(name not in tensors for tensors in self.tensors):
            return False
        values = self.constants(name)
        if values is None:  # weights, which no size changes
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
        checked = read if rule is None else [read[0], *_values(node, read)]
        wrong = [name for name in checked if name not in self.right]
        grows = [name for name in checked if self.growing(name)]
        written = [name for name in node.output if name]
        if not grows and not wrong and not any(self.growing(name) for name in written):
            self.right.update(written)
            return
        if wrong:
            raise _NotProved(f"'{wrong[0]}', which {_titled(node)} reads, depends on the size")
        if rule is None:
            raise _NotProved(f"{_titled(node)} is not known to leave padding behind")
        rule(self, node)
        for name in written:
            self.growing(name)
        self.right.update(written)
        kept = MOVES | {"Cast", "Identity", "Transpose", "Dropout"}
        if node.op_type in kept and read[0] in self.zeros:
            self.zeros.add(written[0])


Rule = Callable[[_Proof, onnx.NodeProto], None]


def _form(node: onnx.NodeProto) -> tuple[object, ...]:
    """What must be the same of an operator at each size."""
    attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
    return node.name, node.op_type, tuple(node.input), tuple(node.output), tuple(attributes)


def _values(node: onnx.NodeProto, read: Sequence[str]) -> list[str]:
    """The inputs but the first that are values, not sizes or axes."""
    shaped = {"Slice", "Expand", "Tile", "Pad", "CumSum", "OneHot", "Resize", *MOVES, *REDUCTIONS}
    return [] if node.op_type in shaped else list(read[1:])


def _titled(node: onnx.NodeProto) -> str:
    return f"operator '{node.name}' ({node.op_type})"


def _attribute(node: onnx.NodeProto, name: str, otherwise: Any) -> Any:
    found = next((a for a in node.attribute if a.name == name), None)
    return otherwise if found is None else onnx.helper.get_attribute_value(found)


def _refuse_along(proof: _Proof, node: onnx.NodeProto, axes: Sequence[int], place: int = 0) -> None:
    """Raise `_NotProved` if one of these axes of an input grows."""
    name = node.input[place]
    rank = len(proof.sizes(name)[0])
    if {axis % rank for axis in axes if rank}.intersection(proof.growing(name)):
        raise _NotProved(f"{_titled(node)} combines numbers along it")


def _each_value(proof: _Proof, node: onnx.NodeProto) -> None:
    if node.op_type in ("Div", "Mod") and proof.growing(node.input[1]):
        kinds = proof.graphs[0].types()
        if kinds.get(node.input[1]) != onnx.TensorProto.FLOAT:
            raise _NotProved(f"{_titled(node)} would divide by integers of the padding")
    if node.op_type == "BatchNormalization" and _attribute(node, "training_mode", 0):
        raise _NotProved(f"{_titled(node)} is in training mode")


def _along_axis(proof: _Proof, node: onnx.NodeProto) -> None:
    usual = {"Concat": 0, "Split": 0, "LpNormalization": -1}
    old = proof.opset < 13
    axis = int(_attribute(node, "axis", usual.get(node.op_type, 1 if old else -1)))
    softmax = node.op_type in ("Softmax", "LogSoftmax", "Hardmax")
    for place, name in enumerate(node.input[:1] if node.op_type != "Concat" else node.input):
        rank = len(proof.sizes(name)[0])
        axes = range(axis % rank, rank) if softmax and old else [axis]
        _refuse_along(proof, node, list(axes), place)


def _from_axis(proof: _Proof, node: onnx.NodeProto) -> None:
    rank = len(proof.sizes(node.input[0])[0])
    _refuse_along(proof, node, range(int(_attribute(node, "axis", -1)) % rank, rank))


def _from_third(proof: _Proof, node: onnx.NodeProto) -> None:
    _refuse_along(proof, node, range(2, len(proof.sizes(node.input[0])[0])))


def _but_first(proof: _Proof, node: onnx.NodeProto) -> None:
    _refuse_along(proof, node, range(1, len(proof.sizes(node.input[0])[0])))


def _reduced(proof: _Proof, node: onnx.NodeProto) -> None:
    rank = len(proof.sizes(node.input[0])[0])
    axes = _attribute(node, "axes", None)
    if node.op_type in ("ArgMax", "ArgMin"):
        axes = [_attribute(node, "axis", 0)]
    elif len(node.input) > 1 and node.input[1]:
        known = proof.constant(node.input[1])
        if known is None:
            raise _NotProved(f"the axes of {_titled(node)} are not constant")
        axes = known.tolist()
    if not axes:
        axes = [] if _attribute(node, "noop_with_empty_axes", 0) else range(rank)
    if node.op_type == "ReduceSum" and node.input[0] in proof.zeros:
        return  # zeros change no sum
    _refuse_along(proof, node, list(axes))


def _product(proof: _Proof, node: onnx.NodeProto) -> None:
    if any(len(proof.sizes(name)[0]) < 2 for name in node.input[:2]):
        raise _NotProved(f"{_titled(node)} reads a vector")
    inner = [-1, -2]
    if node.op_type == "Gemm":
        inner = [
            0 if _attribute(node, "transA", 0) else 1,
            1 if _attribute(node, "transB", 0) else 0,
        ]
    for place, axis in enumerate(inner):
        _refuse_along(proof, node, [axis], place)


def _convolution(proof: _Proof, node: onnx.NodeProto) -> None:
    data = proof.growing(node.input[0])
    if any(proof.growing(name) for name in node.input[1:] if name) or 1 in data:
        raise _NotProved(f"{_titled(node)} combines numbers along it")
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
        # Nothing behind is read, or it is zeros as the padding of the convolution itself is.
        alone = kernel[place] == 1 and not pads[place]
        causal = not pads[place + spatial]
        if strides[place] != 1 or automatic or not all(same):
            raise _NotProved(f"{_titled(node)} does not keep its length")
        if not (alone or causal or node.input[0] in proof.zeros):
            raise _NotProved(f"{_titled(node)} combines numbers along it")


def _moved(proof: _Proof, node: onnx.NodeProto) -> None:
    """An axis that grows stays behind the same number of others, so it keeps its front."""
    before, behind = proof.growing(node.input[0]), proof.growing(node.output[0])
    pairs = zip(proof.sizes(node.input[0]), proof.sizes(node.output[0]), strict=True)
    for one, other in pairs:
        if [prod(one[:axis]) for axis in before] != [prod(other[:axis]) for axis in behind]:
            raise _NotProved(f"{_titled(node)} moves numbers of the padding between others")


def _transposed(proof: _Proof, node: onnx.NodeProto) -> None:
    """Each axis keeps its order."""


def _sliced(proof: _Proof, node: onnx.NodeProto) -> None:
    names = list(node.input[1:])
    if not names:
        raise _NotProved(f"{_titled(node)} has its bounds in attributes")
    rank = len(proof.sizes(node.input[0])[0])
    known = [proof.constants(name) if name else None for name in names]
    starts = known[0]
    axes = known[2] if len(known) > 2 else None
    steps = known[3] if len(known) > 3 else None
    computed = [name for name, each in zip(names, known, strict=True) if name and each is None]
    if starts is None or computed:
        raise _NotProved(f"the bounds of {_titled(node)} are not constant")
    grows = {*proof.growing(node.input[0]), *proof.growing(node.output[0])}
    for probe, begin in enumerate(starts):
        listed = range(len(begin)) if axes is None else axes[probe]
        strides = [1] * len(begin) if steps is None else steps[probe]
        for axis, start, stride in zip(listed, begin, strides, strict=True):
            if int(axis) % rank in grows and (start != 0 or stride != 1):
                raise _NotProved(f"{_titled(node)} cuts it at its front")
            if int(axis) % rank not in grows and start != starts[0][list(listed).index(axis)]:
                raise _NotProved(f"{_titled(node)} begins at a place that depends on the size")


def _expanded(proof: _Proof, node: onnx.NodeProto) -> None:
    """What is repeated along it is the same everywhere."""


def _tiled(proof: _Proof, node: onnx.NodeProto) -> None:
    repeats = proof.constant(node.input[1])
    if repeats is None or any(repeats[axis] != 1 for axis in proof.growing(node.input[0])):
        raise _NotProved(f"{_titled(node)} repeats it")


def _padded(proof: _Proof, node: onnx.NodeProto) -> None:
    amounts = proof.constant(node.input[1]) if len(node.input) > 1 else None
    axes = len(node.input) > 3 and node.input[3]
    rank = len(proof.sizes(node.input[0])[0])
    if (
        amounts is None
        or axes
        or any(amounts[axis] or amounts[axis + rank] for axis in proof.growing(node.input[0]))
    ):
        raise _NotProved(f"{_titled(node)} pads it")


def _gathered(proof: _Proof, node: onnx.NodeProto) -> None:
    axis = int(_attribute(node, "axis", 0))
    rank = len(proof.sizes(node.input[0])[0])
    if axis % rank in proof.growing(node.input[0]):
        places = proof.constant(node.input[1])
        if places is None or places.any():
            raise _NotProved(f"{_titled(node)} picks from it")
    if proof.growing(node.input[1]) and not (
        node.input[1] in proof.zeros or proof.constants(node.input[1]) is not None
    ):
        raise _NotProved(f"{_titled(node)} would look up what the padding computes")


def _summed_up(proof: _Proof, node: onnx.NodeProto) -> None:
    if _attribute(node, "reverse", 0):
        raise _NotProved(f"{_titled(node)} begins at the end")


def _one_hot(proof: _Proof, node: onnx.NodeProto) -> None:
    if any(proof.constant(name) is None for name in node.input[1:]):
        raise _NotProved(f"{_titled(node)} depends on the size")


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _each_value),
    **dict.fromkeys(MOVES, _moved),
    **dict.fromkeys(REDUCTIONS, _reduced),
    **dict.fromkeys(POOLS, _from_third),
    **dict.fromkeys(ALONG_ONE, _along_axis),
    **dict.fromkeys(FROM_AXIS, _from_axis),
    "Conv": _convolution,
    "CumSum": _summed_up,
    "Expand": _expanded,
    "Gather": _gathered,
    "Gemm": _product,
    "GroupNormalization": _but_first,
    "LRN": _but_first,
    "MatMul": _product,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Slice": _sliced,
    "Tile": _tiled,
    "Transpose": _transposed,
}
"""By operator what must hold for its results to be right in front, given that its inputs are."""
