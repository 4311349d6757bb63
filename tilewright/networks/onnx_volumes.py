"""Rewrites convolutions of volumes as those of images, with the taps along depth as channels.

A volume (n, c, d, h, w) becomes its frames (n * d, c, h, w). A kernel of kd taps along depth reads
kd frames beside each other: one image of kd * c channels, weights (o, kd * c, kh, kw). Frames that
padding stands for are zeros. Element-wise operators between convolutions work on frames, too, so a
chain changes its shape only where it begins and ends.

A maximum along depth is that of kd tensors of frames. A transposed convolution whose kernel is as
deep as its stride gives frames beside each other as channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph, Shape
from tilewright.networks.onnx_file import is_stub, stub
from tilewright.networks.onnx_images import BROADCAST, PER_ELEMENT, read_names, set_ints
from tilewright.networks.static_shapes import infer_shapes

VOLUME = 5
"""The rank of a tensor of volumes."""
DEPTH_FIRST = (0, 2, 1, 3, 4)
"""Swaps channels and depth."""
PER_PIXEL = PER_ELEMENT - {"GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization"}
"""Operators that read no other frame."""
OF_KERNEL = frozenset(("kernel_shape", "strides", "dilations", "output_padding"))
Indices = NDArray[np.int64]


def as_frames(normal: NormalGraph) -> None:
    """Rewrite a graph in place, where data and weights (o, c, kd, kh, kw) are float32 and weights
    constant. One without such convolutions stays as it is. Raises `ModelFileError` where the graph
    contradicts itself."""
    writer = _FrameWriter(normal)
    if not any(writer.convolves(node) for node in normal.graph.node):
        return
    for node in normal.graph.node:
        writer.write(node)
    writer.finish()


class _FrameWriter:
    """`frames` names the four-dimensional form of a tensor of volumes."""

    def __init__(self, normal: NormalGraph) -> None:
        self._normal = normal
        self._shapes, self._types = normal.shapes(), normal.types()
        self._constants = normal.tensors()
        self._frames: dict[str, str] = {}
        self._whole = {info.name for info in normal.graph.input} | set(self._constants)
        self._nodes: list[onnx.NodeProto] = []
        self._names = {operator.name for operator in normal.operators}
        self._rules: Sequence[
            tuple[Callable[[onnx.NodeProto], bool], Callable[[onnx.NodeProto], None]]
        ] = (
            (self._is_convolution, self._convolution),
            (self._is_transposed, self._transposed),
            (self._is_pool, self._pool),
            (self._is_per_pixel, self._per_pixel),
            (self._is_broadcast, self._broadcast),
            (self._is_concatenation, self._concatenation),
        )

    def convolves(self, node: onnx.NodeProto) -> bool:
        """Whether a node is a convolution that becomes one of images."""
        return self._is_convolution(node) or self._is_transposed(node)

    def write(self, node: onnx.NodeProto) -> None:
        """Append an operator, in the form that suits what it reads."""
        for applies, rule in self._rules:
            if node.domain in STANDARD_DOMAINS and applies(node):
                rule(node)
                return
        for name in read_names(node):
            self._make_whole(name)
        self._nodes.append(node)
        self._whole.update(node.output)

    def finish(self) -> None:
        """Put the operators into the graph."""
        graph = self._normal.graph
        for output in graph.output:
            self._make_whole(output.name)
        self._normal.replace_nodes(self._nodes)
        made = {name for node in self._nodes for name in node.output}
        kept = [info for info in graph.value_info if info.name in made]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        infer_shapes(self._normal)

    def _make_whole(self, name: str) -> None:
        """Have a tensor as volumes."""
        if name in self._frames and name not in self._whole:
            n, c, d, h, w = self._shapes[name]
            apart = self._reshape(self._frames[name], f"{name}/depth", (n, d, c, h, w))
            self._add("Transpose", [apart], name, perm=DEPTH_FIRST)
            self._whole.add(name)

    def _framed(self, name: str) -> str:
        """The frames (n * d, c, h, w) of a tensor of volumes."""
        if name not in self._frames:
            n, c, d, h, w = self._shapes[name]
            moved = self._add("Transpose", [name], f"{name}/depth_first", perm=DEPTH_FIRST)
            self._frames[name] = self._reshape(moved, f"{name}/frames", (n * d, c, h, w))
        return self._frames[name]

    def _append(self, node: onnx.NodeProto) -> None:
        """An operator of the original whose result has become frames."""
        name = node.output[0]
        node.output[0] = self._frames[name] = f"{name}/frames"
        self._nodes.append(node)

    def _add(self, kind: str, inputs: Sequence[str], result: str, **attributes: object) -> str:
        name = f"{result}/{kind.lower()}"
        while name in self._names:
            name += "_"
        self._names.add(name)
        node = helper.make_node(kind, inputs, [result], name=name, **attributes)
        self._nodes.append(node)
        self._normal.add_operator(node)
        return result

    def _reshape(self, source: str, result: str, shape: Shape) -> str:
        wanted = self._constant(f"{result}/shape", np.array(shape, np.int64))
        return self._add("Reshape", [source, wanted], result)

    def _constant(self, name: str, values: NDArray[np.generic]) -> str:
        self._normal.add_tensor(numpy_helper.from_array(values, name))
        return name

    def _is_volume(self, name: str) -> bool:
        shape = self._shapes.get(name, ())
        return len(shape) == VOLUME and min(shape) > 0

    def _is_windowed(self, node: onnx.NodeProto) -> bool:
        """Whether a node reads windows of volumes with known padding, and gives one tensor."""
        single = len([name for name in node.output if name]) == 1
        padding = {a.name: a.s for a in node.attribute}.get("auto_pad", b"NOTSET")
        pads = _ints(node).get("pads", (0,))
        known = self._is_volume(node.input[0]) and self._is_volume(node.output[0])
        standard = node.domain in STANDARD_DOMAINS
        return standard and single and known and padding == b"NOTSET" and min(pads) >= 0

    def _has_weights(self, node: onnx.NodeProto) -> bool:
        weight = self._constants.get(node.input[1])
        kinds = {self._types.get(name) for name in node.input if name}
        return weight is not None and len(weight.dims) == VOLUME and kinds == {1}

    def _is_convolution(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Conv" and self._is_windowed(node) and self._has_weights(node)

    def _convolution(self, node: onnx.NodeProto) -> None:
        taps = self._shapes[node.input[1]][2]
        windows = self._windows(node, taps)
        groups = {a.name: a.i for a in node.attribute}.get("group", 1)
        node.input[0] = self._side_by_side(node, windows, groups)
        node.input[1] = self._weights(node.input[1])
        _drop_depth(node)
        self._append(node)

    def _windows(self, node: onnx.NodeProto, taps: int) -> Indices:
        """Which frames of its image each frame of the output reads, (d, taps): also beyond it."""
        numbers = _ints(node)
        stride, dilation = (numbers.get(name, (1,))[0] for name in ("strides", "dilations"))
        first = np.arange(self._shapes[node.output[0]][2]) * stride - numbers.get("pads", (0,))[0]
        windows: Indices = first[:, None] + np.arange(taps) * dilation
        return windows

    def _side_by_side(self, node: onnx.NodeProto, windows: Indices, groups: int) -> str:
        """Frames (n * d, taps * c, h, w), those of one window together in each of the groups."""
        source, base = self._framed(node.input[0]), f"{node.output[0]}/taps"
        n, c, d, h, w = self._shapes[node.input[0]]
        inside = (windows >= 0) & (windows < d)
        made = self._gather(source, f"{base}/gathered", n, d, np.where(inside, windows, 0).ravel())
        if not inside.all():
            mask = np.tile(inside.ravel(), n).reshape(-1, 1, 1, 1)
            zero = self._constant(f"{base}/zero", np.zeros((), np.float32))
            mask_name = self._constant(f"{base}/inside", mask)
            made = self._add("Where", [mask_name, made, zero], f"{base}/padded")
        count, taps = windows.shape
        if taps == 1:
            return made
        if groups > 1:
            apart = self._reshape(
                made, f"{base}/apart", (n * count, taps, groups, c // groups, h * w)
            )
            made = self._add("Transpose", [apart], f"{base}/grouped", perm=DEPTH_FIRST)
        return self._reshape(made, base, (n * count, taps * c, h, w))

    def _gather(self, source: str, result: str, n: int, d: int, places: Indices) -> str:
        """Frames at these places of each image."""
        chosen = (np.arange(n)[:, None] * d + places).ravel()
        if np.array_equal(chosen, np.arange(n * d)):
            return source
        return self._add("Gather", [source, self._constant(f"{result}/places", chosen)], result)

    def _weights(self, name: str) -> str:
        """(o, c, kd, kh, kw) as (o, kd * c, kh, kw)."""
        result, weight = f"{name}/frames", self._constants[name]
        if result not in self._constants:
            o, c, kd, kh, kw = weight.dims
            shape = (o, kd * c, kh, kw)
            made = stub(result, shape, weight.data_type)
            if not is_stub(weight):
                moved = numpy_helper.to_array(weight).transpose(DEPTH_FIRST).reshape(shape)
                made = numpy_helper.from_array(np.ascontiguousarray(moved), result)
            self._normal.add_tensor(made)
            self._constants[result] = made
        return result

    def _is_transposed(self, node: onnx.NodeProto) -> bool:
        """Whether a kernel along depth is as long as its stride, and nothing is cut off there."""
        if node.op_type != "ConvTranspose" or not self._is_windowed(node):
            return False
        numbers, taps = _ints(node), self._shapes.get(node.input[1], (0, 0, 0))[2]
        biased = len(node.input) > 2 and node.input[2]
        return (
            self._has_weights(node)
            and "output_shape" not in numbers
            and {a.name: a.i for a in node.attribute}.get("group", 1) == 1
            and numbers.get("strides", (1,))[0] == taps
            and numbers.get("dilations", (1,))[0] == 1
            and self._shapes[node.output[0]][2] == self._shapes[node.input[0]][2] * taps
            and not any(numbers.get("pads", (0,) * 6)[::3])
            and (not biased or node.input[2] in self._constants)
        )

    def _transposed(self, node: onnx.NodeProto) -> None:
        n, c, d, h, w = self._shapes[node.output[0]]
        taps = self._shapes[node.input[1]][2]
        node.input[0] = self._framed(node.input[0])
        node.input[1] = self._weights(node.input[1])
        if len(node.input) > 2 and node.input[2]:
            node.input[2] = self._repeated(node.input[2], taps)
        _drop_depth(node)
        name = node.output[0]
        node.output[0] = f"{name}/taps"
        self._nodes.append(node)
        self._frames[name] = self._reshape(f"{name}/taps", f"{name}/frames", (n * d, c, h, w))

    def _repeated(self, name: str, times: int) -> str:
        """A bias (o,) as (times * o,)."""
        result, bias = f"{name}/repeated_{times}", self._constants[name]
        if result not in self._constants:
            made = stub(result, (times * bias.dims[0],), bias.data_type)
            if not is_stub(bias):
                made = numpy_helper.from_array(np.tile(numpy_helper.to_array(bias), times), result)
            self._normal.add_tensor(made)
            self._constants[result] = made
        return result

    def _is_pool(self, node: onnx.NodeProto) -> bool:
        """Maxima where every window has a frame, averages of single frames."""
        if node.op_type not in ("MaxPool", "AveragePool") or not self._is_windowed(node):
            return False
        windows, depth = self._windows(node, _ints(node)["kernel_shape"][0]), self._depth(node)
        inside = (windows >= 0) & (windows < depth)
        single = windows.shape[1] == 1 and bool(inside.all())
        return single or (node.op_type == "MaxPool" and bool(inside.any(axis=1).all()))

    def _depth(self, node: onnx.NodeProto) -> int:
        return self._shapes[node.input[0]][2]

    def _pool(self, node: onnx.NodeProto) -> None:
        n, _, d, _, _ = self._shapes[node.input[0]]
        windows = self._windows(node, _ints(node)["kernel_shape"][0])
        inside = (windows >= 0) & (windows < d)
        some = windows[np.arange(len(windows)), inside.argmax(axis=1)]  # a frame of each window
        places = np.where(inside, windows, some[:, None])
        node.input[0] = self._framed(node.input[0])
        _drop_depth(node)
        name = node.output[0]
        node.output[0] = made = f"{name}/pooled"
        self._nodes.append(node)
        taps = [
            self._gather(made, f"{made}/{tap}", n, d, column) for tap, column in enumerate(places.T)
        ]
        largest = taps[0]
        for tap, other in enumerate(taps[1:], 1):
            largest = self._add("Max", [largest, other], f"{made}/largest_{tap}")
        self._frames[name] = largest

    def _is_per_pixel(self, node: onnx.NodeProto) -> bool:
        single = len([name for name in node.output if name]) == 1
        return node.op_type in PER_PIXEL and node.input[0] in self._frames and single

    def _per_pixel(self, node: onnx.NodeProto) -> None:
        node.input[0] = self._frames[node.input[0]]
        self._append(node)

    def _is_broadcast(self, node: onnx.NodeProto) -> bool:
        """Between volumes of one depth, those of one frame, and constants that are equal in all
        frames."""
        if node.op_type not in BROADCAST or not any(n in self._frames for n in node.input):
            return False
        names = [name for name in node.input if name not in self._constants]
        fits = all(map(self._is_volume, names)) and self._is_volume(node.output[0])
        n, _, d, _, _ = self._shapes[node.output[0]] if fits else (0,) * VOLUME
        found = {(self._shapes[name][0], self._shapes[name][2]) for name in names} if fits else ()
        constants = [self._constants[name] for name in node.input if name in self._constants]
        return (
            fits
            and all(each == (n, d) or (n == 1 and each == (1, 1)) for each in found)
            and all(_is_equal_in_frames(tensor) for tensor in constants)
        )

    def _broadcast(self, node: onnx.NodeProto) -> None:
        for place, name in enumerate(node.input):
            constant = name in self._constants
            node.input[place] = self._without_depth(name) if constant else self._framed(name)
        self._append(node)

    def _without_depth(self, name: str) -> str:
        """A constant that broadcasts against frames as it did against volumes."""
        tensor = self._constants[name]
        if len(tensor.dims) < 3:
            return name
        result = f"{name}/frames"
        if result not in self._constants:
            made = onnx.TensorProto()
            made.CopyFrom(tensor)
            made.name = result
            sizes = [*tensor.dims[:-3], *tensor.dims[-2:]]
            del made.dims[:]
            made.dims.extend(sizes)
            self._normal.add_tensor(made)
            self._constants[result] = made
        return result

    def _is_concatenation(self, node: onnx.NodeProto) -> bool:
        """Along channels."""
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        known = any(name in self._frames for name in node.input)
        return (
            node.op_type == "Concat"
            and axis in (1, 1 - VOLUME)
            and known
            and all(map(self._is_volume, node.input))
        )

    def _concatenation(self, node: onnx.NodeProto) -> None:
        next(a for a in node.attribute if a.name == "axis").i = 1
        for place, name in enumerate(node.input):
            node.input[place] = self._framed(name)
        self._append(node)


def _is_equal_in_frames(tensor: onnx.TensorProto) -> bool:
    sizes = (1,) * (VOLUME - len(tensor.dims)) + tuple(tensor.dims)
    return len(sizes) == VOLUME and sizes[0] == sizes[2] == 1


def _ints(node: onnx.NodeProto) -> Mapping[str, tuple[int, ...]]:
    return {attribute.name: tuple(attribute.ints) for attribute in node.attribute if attribute.ints}


def _drop_depth(node: onnx.NodeProto) -> None:
    """Windows of images in place of those of volumes."""
    for attribute in node.attribute:
        if attribute.name in OF_KERNEL:
            set_ints(attribute, attribute.ints[1:])
        elif attribute.name == "pads":
            _, top, left, _, bottom, right = attribute.ints
            set_ints(attribute, [top, left, bottom, right])
