"""Rewrite one-dimensional convolutions and pools.

Most of them become operators on images of height 1. A convolution of a long one-channel signal with
a long kernel becomes a matrix product: the rows are overlapping pieces of the signal, called
frames, and the columns are the kernels of the output channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.networks.onnx.files import is_stub, stub
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, NormalGraph, Shape

WINDOWED: Mapping[str, int | None] = {
    "Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "QLinearConv": 3, "MaxPool": None,
    "AveragePool": None,
}  # fmt: skip
"""Operators with a sliding window that are rewritten for images. The value is the index of the
input with the weights, or None for an operator without weights."""
PER_ELEMENT = frozenset((
    "Abs", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "DequantizeLinear", "Dropout",
    "Elu", "Erf", "Exp", "Floor", "Gelu", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid",
    "HardSwish", "Identity", "InstanceNormalization", "LRN", "LeakyRelu", "Log", "Mish", "Neg",
    "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus",
    "Softsign", "Sqrt", "Tanh", "ThresholdedRelu",
))  # fmt: skip
"""Operators that treat their first input as a tensor with channels, whatever its rank is. Their
other inputs are scalars or have one value per channel."""
BROADCAST = frozenset(("Add", "Div", "Max", "Mean", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum"))
"""Elementwise operators that broadcast their inputs."""
REDUCTIONS = frozenset(("ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin"))
"""Reduction operators that are rewritten for images."""
HEIGHT = 2
"""Index of the dimension of size 1 that is inserted to make a one-dimensional signal an image."""


def as_images(normal: NormalGraph) -> None:
    """Rewrite one-dimensional convolutions and pools as operators on images of height 1, in place.

    A graph without one-dimensional convolutions and pools is not changed.
    """
    shapes = normal.shapes()
    if not any(_is_windowed(node, shapes) for node in normal.graph.node):
        return
    writer = _ImageWriter(normal, shapes)
    for node in normal.graph.node:
        writer.write(node)
    writer.finish()


def _is_windowed(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> bool:
    """Return whether a node is a one-dimensional convolution or pool with a single result."""
    index = WINDOWED.get(node.op_type, 0)
    known = len(shapes.get(node.input[0] if node.input else "", ())) == 3
    has_weights = not index or len(shapes.get(node.input[index], ())) == 3
    single = len([name for name in node.output if name]) == 1
    standard = node.domain in STANDARD_DOMAINS and node.op_type in WINDOWED
    return standard and known and has_weights and single


class _ImageWriter:
    """Writes the operators of a graph one by one, with sequences converted to images.

    A sequence is a tensor of shape (n, c, length). Its image has shape (n, c, 1, length). An
    operator for which no rule exists reads and writes sequences, as in the source graph.

    Args:
        normal: the graph.
        shapes: known shapes by tensor name.
    """

    def __init__(self, normal: NormalGraph, shapes: Mapping[str, Shape]) -> None:
        self._normal = normal
        self._shapes = shapes
        self._constants = normal.tensors()
        self._opset = max(
            (o.version for o in normal.model.opset_import if o.domain in STANDARD_DOMAINS),
            default=13,
        )
        self._images: dict[str, str] = {}
        self._flat = {info.name for info in normal.graph.input} | set(self._constants)
        self._nodes: list[onnx.NodeProto] = []
        self._makers = {name: node for node in normal.graph.node for name in node.output}
        rules: tuple[tuple[Callable[[onnx.NodeProto], bool], Callable[[onnx.NodeProto], None]], ...]
        rules = (
            (lambda node: _is_windowed(node, shapes), self._write_window),
            (self._is_per_element, self._per_element),
            (self._is_broadcast, self._broadcast),
            (self._is_concatenation, self._concatenation),
            (self._is_reduction, self._reduction),
            (self._is_reshape, self._reshape),
        )
        self._rules = rules

    def write(self, node: onnx.NodeProto) -> None:
        """Append an operator of the source graph.

        It is changed to read and write images if one of the rules applies to it.

        Args:
            node: the operator.
        """
        standard = node.domain in STANDARD_DOMAINS
        for applies, rule in self._rules:
            if standard and applies(node):
                rule(node)
                return
        for name in read_names(node):
            self._flatten(name)
        self._append(node)

    def finish(self) -> None:
        """Replace the operators of the graph by the written operators."""
        for output in self._normal.graph.output:
            self._flatten(output.name)
        graph = self._normal.graph
        self._normal.replace_nodes(self._nodes)
        written = {name for node in self._nodes for name in node.output}
        kept = [info for info in graph.value_info if info.name in written]
        del graph.value_info[:]
        graph.value_info.extend(kept)

    def _append(self, node: onnx.NodeProto) -> None:
        self._nodes.append(node)
        self._flat.update(node.output)

    def _append_image(self, node: onnx.NodeProto) -> None:
        """Append an operator, and record that its result is an image instead of a sequence."""
        name = node.output[0]
        node.output[0] = self._images[name] = f"{name}/image"
        self._nodes.append(node)

    def _flatten(self, name: str) -> None:
        """Append the conversion of an image to its sequence, unless the sequence already exists.

        Args:
            name: name of the sequence. Nothing is appended if it has no image.
        """
        if name in self._images and name not in self._flat:
            maker = self._makers[name].name
            self._move("Squeeze", self._images[name], name, maker)
            self._flat.add(name)

    def _image(self, name: str) -> str:
        """Return the name of a sequence's image. The conversion is appended on first use.

        Args:
            name: name of the sequence.
        """
        if name not in self._images:
            self._images[name] = f"{name}/image"
            self._move("Unsqueeze", name, self._images[name], name)
        return self._images[name]

    def _move(self, kind: str, source: str, result: str, owner: str) -> None:
        taken = {operator.name for operator in self._normal.operators}
        name = f"{owner}/{kind.lower()}"
        while name in taken:
            name += "_"
        if self._opset < 13:
            node = helper.make_node(kind, [source], [result], name=name, axes=[HEIGHT])
        else:
            axes = f"{name}/axes"
            self._normal.add_tensor(helper.make_tensor(axes, onnx.TensorProto.INT64, [1], [HEIGHT]))
            node = helper.make_node(kind, [source, axes], [result], name=name)
        self._nodes.append(node)
        self._normal.add_operator(node)

    def _write_window(self, node: onnx.NodeProto) -> None:
        place = WINDOWED[node.op_type]
        node.input[0] = self._image(node.input[0])
        if place is not None:
            node.input[place] = self._weight(node.input[place])
        for attribute in node.attribute:
            if attribute.name in ("kernel_shape", "strides", "dilations"):
                set_ints(attribute, [1, *attribute.ints])
            elif attribute.name == "output_padding":
                set_ints(attribute, [0, *attribute.ints])
            elif attribute.name == "pads":
                begin, end = attribute.ints
                set_ints(attribute, [0, begin, 0, end])
        self._append_image(node)

    def _weight(self, name: str) -> str:
        """Return the name of a convolution's weights, converted to a kernel of height 1.

        Constant weights are reshaped, also if a DequantizeLinear reads them. Computed weights get
        an Unsqueeze.

        Args:
            name: name of the weights, of shape (o, c, length).
        """
        if name in self._constants:
            return self._constant(name)
        maker = self._makers.get(name)
        if (
            maker is None
            or maker.op_type != "DequantizeLinear"
            or (maker.input[0] not in self._constants or len(self._shapes.get(name, ())) != 3)
        ):
            return self._image(name)
        if name not in self._images:
            node = deepcopy(maker)
            node.name = f"{maker.name}/image"
            node.input[0] = self._constant(maker.input[0])
            node.output[0] = self._images[name] = f"{name}/image"
            _move_axis(node)
            self._nodes.append(node)
            self._normal.add_operator(node)
        return self._images[name]

    def _constant(self, name: str) -> str:
        """Return the name of a constant, reshaped so that it broadcasts with images.

        Args:
            name: name of the constant, which broadcasts with sequences. The reshaped constant is
                added on first use.
        """
        tensor = self._constants[name]
        if len(tensor.dims) < 2:
            return name
        image = f"{name}/image"
        if image not in self._constants:
            reshaped = deepcopy(tensor)
            reshaped.name = image
            sizes = [*tensor.dims[:-1], 1, *tensor.dims[-1:]]
            del reshaped.dims[:]
            reshaped.dims.extend(sizes)
            self._normal.add_tensor(reshaped)
            self._constants[image] = reshaped
        return image

    def _is_per_element(self, node: onnx.NodeProto) -> bool:
        has_one_output = len([name for name in node.output if name]) == 1
        return node.op_type in PER_ELEMENT and node.input[0] in self._images and has_one_output

    def _per_element(self, node: onnx.NodeProto) -> None:
        node.input[0] = self._images[node.input[0]]
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            _move_axis(node)
        self._append_image(node)

    def _is_broadcast(self, node: onnx.NodeProto) -> bool:
        ranks = [len(self._shapes.get(name, ())) for name in node.input]
        fits = all(
            name in self._images
            or (name in self._constants and rank <= 3)
            or (name in self._shapes and rank in (0, 3))
            for name, rank in zip(node.input, ranks, strict=True)
        )
        return node.op_type in BROADCAST and fits and any(n in self._images for n in node.input)

    def _broadcast(self, node: onnx.NodeProto) -> None:
        for place, name in enumerate(node.input):
            if name in self._constants:
                node.input[place] = self._constant(name)
            elif len(self._shapes[name]) == 3:
                node.input[place] = self._image(name)
        self._append_image(node)

    def _is_concatenation(self, node: onnx.NodeProto) -> bool:
        are_sequences = all(len(self._shapes.get(name, ())) == 3 for name in node.input)
        return (
            node.op_type == "Concat"
            and are_sequences
            and any(n in self._images for n in node.input)
        )

    def _concatenation(self, node: onnx.NodeProto) -> None:
        axis = next(a for a in node.attribute if a.name == "axis")
        axis.i = _axis(axis.i)
        for place, name in enumerate(node.input):
            constant = name in self._constants
            node.input[place] = self._constant(name) if constant else self._image(name)
        self._append_image(node)

    def _is_reduction(self, node: onnx.NodeProto) -> bool:
        """Return whether a node reduces exactly the last axis of a sequence (n, c, length).

        Its axes must be constant.
        """
        if node.op_type not in REDUCTIONS or node.input[0] not in self._images:
            return False
        axes_lists = [list(a.ints) for a in node.attribute if a.name == "axes"]
        if len(node.input) > 1 and node.input[1] in self._constants:
            tensor = self._constants[node.input[1]]
            axes_lists = [] if is_stub(tensor) else [numpy_helper.to_array(tensor).ravel().tolist()]
        return axes_lists in ([[2]], [[-1]])

    def _reduction(self, node: onnx.NodeProto) -> None:
        keeps = next((a.i for a in node.attribute if a.name == "keepdims"), 1)
        node.input[0] = self._images[node.input[0]]
        for attribute in node.attribute:
            if attribute.name == "axes":
                set_ints(attribute, [HEIGHT, HEIGHT + 1])
        if len(node.input) > 1:
            name = f"{node.name}/axes"
            kind = onnx.TensorProto.INT64
            self._normal.add_tensor(helper.make_tensor(name, kind, [2], [HEIGHT, HEIGHT + 1]))
            node.input[1] = name
        if keeps:
            self._append_image(node)
        else:
            self._append(node)

    def _is_reshape(self, node: onnx.NodeProto) -> bool:
        """Return whether a reshape gives the same result for a sequence and for its image.

        A sequence has shape (n, c, length), and its image (n, c, 1, length).
        """
        if not node.input or node.input[0] not in self._images:
            return False
        if node.op_type == "Flatten":
            return next((a.i for a in node.attribute if a.name == "axis"), 1) in (1, 2)
        shape = self._constants.get(node.input[1]) if len(node.input) > 1 else None
        known = node.op_type == "Reshape" and shape is not None and not is_stub(shape)
        return known and shape is not None and bool(numpy_helper.to_array(shape).all())

    def _reshape(self, node: onnx.NodeProto) -> None:
        node.input[0] = self._images[node.input[0]]
        self._append(node)


def _axis(axis: int) -> int:
    """Convert an axis of a sequence (n, c, length) to the axis of its image (n, c, 1, length)."""
    return (0, 1, HEIGHT + 1)[axis % 3]


def _move_axis(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name == "axis":
            attribute.i = _axis(attribute.i)


def set_ints(attribute: onnx.AttributeProto, values: Sequence[int]) -> None:
    """Replace the list of integers in an ONNX attribute, in place.

    Args:
        attribute: the attribute.
        values: the new integers.
    """
    del attribute.ints[:]
    attribute.ints.extend(values)


def read_names(node: onnx.NodeProto) -> list[str]:
    """Return the names of the tensors that a node reads, including those in its subgraphs."""
    names = list(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            names += [name for inner in graph.node for name in read_names(inner)]
            names += [output.name for output in graph.output]
    return names


LEAST_TAPS = 64
"""Minimum kernel length of a convolution that is rewritten as a matrix product of the signal's
frames. A frame is the part of the signal that one output element reads."""
MOST_SLICES = 8
"""Maximum ratio of kernel length to stride of a convolution that is rewritten as a matrix product
of frames. With a larger ratio, the overlapping frames would take many times as much memory as the
signal."""
LEAST_CHANNELS = 16
"""Minimum number of output channels of a convolution that is rewritten as a matrix product of
frames. Each output channel reads a frame once, so with fewer channels the frames would hardly be
reused."""


def as_frame_products(normal: NormalGraph) -> None:
    """Rewrite convolutions of a one-channel signal as products of the signal's frames, in place.

    This applies to float32 convolutions with long kernels, at least `LEAST_CHANNELS` output
    channels and explicit padding.
    """
    shapes, types, tensors = normal.shapes(), normal.types(), normal.tensors()
    nodes: list[onnx.NodeProto] = []
    for node in normal.graph.node:
        weight = tensors.get(node.input[1]) if len(node.input) > 1 else None
        signal = shapes.get(node.input[0]) if node.input else None
        is_float = bool(node.input) and types.get(node.input[0]) == TensorProto.FLOAT
        if signal is None or weight is None or not is_float or not _is_framed(node, signal, weight):
            nodes.append(node)
        else:
            nodes += _FrameProduct(normal, node, signal, weight).nodes()
    normal.replace_nodes(nodes)


def _is_framed(node: onnx.NodeProto, signal: Shape, weight: onnx.TensorProto) -> bool:
    if node.op_type != "Conv" or node.domain not in STANDARD_DOMAINS or len(signal) != 3:
        return False
    numbers = {a.name: list(a.ints) for a in node.attribute if a.ints}
    automatic = any(a.name == "auto_pad" and a.s != b"NOTSET" for a in node.attribute)
    channels, inner, taps = weight.dims
    stride, dilation = numbers.get("strides", [1])[0], numbers.get("dilations", [1])[0]
    return bool(
        not automatic and inner == signal[1] == 1 and dilation == 1 and taps >= LEAST_TAPS
        and taps <= stride * MOST_SLICES and channels >= LEAST_CHANNELS
    )  # fmt: skip


class _FrameProduct:
    """Writes the operators that replace a convolution of a one-channel signal by a matrix product.

    The signal is reshaped to rows of one stride each. Slices of consecutive rows are concatenated
    to the frames, which are the overlapping pieces of the signal under the kernel.

    Args:
        normal: the graph.
        node: the convolution.
        signal: shape (n, 1, length) of the signal.
        weight: weights of shape (channels, 1, taps).
    """

    def __init__(
        self, normal: NormalGraph, node: onnx.NodeProto, signal: Shape, weight: onnx.TensorProto
    ) -> None:
        self._normal, self._node, self._weight = normal, node, weight
        numbers = {a.name: list(a.ints) for a in node.attribute if a.ints}
        self._stride = numbers.get("strides", [1])[0]
        self._pads = numbers.get("pads", [0, 0])
        self._images, _, self._length = signal
        self._made: list[onnx.NodeProto] = []

    def nodes(self) -> list[onnx.NodeProto]:
        """Return the operators that replace the convolution. The last one keeps its name."""
        node, stride, taps = self._node, self._stride, self._weight.dims[2]
        frames = (self._length + sum(self._pads) - taps) // stride + 1
        slices = -(-taps // stride)
        rows = frames + slices - 1
        signal = self._cut_to(rows * stride)
        rows_shape = (self._images, rows, stride)
        split_rows = self._add("Reshape", "rows", [signal, self._integers("shape", rows_shape)])
        parts = []
        for index in range(slices):
            last = taps - index * stride
            parts.append(
                self._slice(split_rows, f"part{index}", (1, index, index + frames), (2, 0, last))
            )
        joined = parts[0] if slices == 1 else self._add("Concat", "frames", parts, axis=2)
        product = self._add("MatMul", "product", [joined, self._taps_first()])
        bias = node.input[2] if len(node.input) > 2 else ""
        if bias:
            product = self._add("Add", "sum", [product, bias])
        node.op_type = "Transpose"
        del node.input[:], node.attribute[:]
        node.input.append(product)
        node.attribute.append(helper.make_attribute("perm", [0, 2, 1]))
        return [*self._made, node]

    def _cut_to(self, length: int) -> str:
        """Append operators that pad the signal and give it exactly `length` elements.

        Elements are cut off or zeros are added at the end. Returns the name of the result.
        """
        begin, _ = self._pads
        name, behind = str(self._node.input[0]), length - self._length - begin
        if behind < 0:
            name = self._slice(name, "cut", (2, 0, self._length + behind))
        if begin or behind > 0:
            pads = self._integers("pads", (0, 0, begin, 0, 0, max(behind, 0)))
            name = self._add("Pad", "padded", [name, pads])
        return name

    def _slice(self, name: str, role: str, *cuts: tuple[int, int, int]) -> str:
        """Append a Slice along several axes and return the name of its result.

        Args:
            name: name of the tensor to slice.
            role: suffix of the names of the operator and its constants.
            *cuts: (axis, begin, end) of each axis.
        """
        axes, begins, ends = (list(values) for values in zip(*cuts, strict=True))
        vectors = [
            self._integers(f"{role}/{label}", values)
            for label, values in (("starts", begins), ("ends", ends), ("axes", axes))
        ]
        return self._add("Slice", role, [name, *vectors])

    def _taps_first(self) -> str:
        """Add the convolution's weights as a matrix of shape (taps, channels) and return its name.

        A tap is a position in the kernel. If the weights have no data, the matrix has none either.
        """
        channels, _, taps = self._weight.dims
        name = f"{self._node.name}/taps"
        if is_stub(self._weight):
            transposed = stub(name, (taps, channels), self._weight.data_type)
        else:
            values = numpy_helper.to_array(self._weight).reshape(channels, taps)
            transposed = numpy_helper.from_array(np.ascontiguousarray(values.T), name)
        self._normal.add_tensor(transposed)
        return name

    def _integers(self, role: str, values: tuple[int, ...] | list[int]) -> str:
        name = f"{self._node.name}/{role}"
        self._normal.add_tensor(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def _add(self, kind: str, role: str, inputs: list[str], **attributes: object) -> str:
        name = f"{self._node.name}/{role}"
        node = helper.make_node(kind, inputs, [name], name=name, **attributes)
        self._made.append(node)
        self._normal.add_operator(node)
        return name
