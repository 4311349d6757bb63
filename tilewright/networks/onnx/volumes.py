"""Rewrite 3-D convolutions as 2-D convolutions, with the kernel's depth in the channels.

A volume of shape (n, c, d, h, w) becomes n · d images of shape (c, h, w), which are called frames.
Each output frame reads the input frames under the kernel as additional channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.networks.onnx.files import is_stub, stub
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, NormalGraph, Shape
from tilewright.networks.onnx.one_dimensional import BROADCAST, PER_ELEMENT, read_names, set_ints
from tilewright.networks.onnx.static_shapes import infer_shapes

VOLUME = 5
"""Number of dimensions of a tensor of volumes, which has the shape (n, c, d, h, w)."""
DEPTH_FIRST = (0, 2, 1, 3, 4)
"""Permutation of the axes that exchanges channels and depth."""
Indices = NDArray[np.int64]
Numbers = NDArray[Any]


class Frames:
    """Tensors of a graph as volumes or as frames, and the operators that convert between both.

    A volume has shape (n, c, d, h, w). Its frames are n · d images of shape (c, h, w).

    Args:
        normal: the graph.

    Attributes:
        framed: name of the tensor that holds the frames, by name of the tensor of volumes.
        nodes: the operators written so far.
    """

    def __init__(self, normal: NormalGraph) -> None:
        self.normal = normal
        self.shapes, self.types = normal.shapes(), normal.types()
        self.constants = normal.tensors()
        self.framed: dict[str, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self._whole = {info.name for info in normal.graph.input} | set(self.constants)
        self._names = {operator.name for operator in normal.operators}

    def is_volume(self, name: str) -> bool:
        """Return whether a tensor holds volumes: five dimensions, none of them empty or unknown.

        Args:
            name: name of the tensor.
        """
        shape = self.shapes.get(name, ())
        return len(shape) == VOLUME and min(shape) > 0

    def frames_of(self, name: str) -> str:
        """Convert volumes to frames, and return the name of the frames.

        The conversion is written on first use.

        Args:
            name: name of the tensor of volumes, of shape (n, c, d, h, w). The frames have the shape
                (n · d, c, h, w).
        """
        if name not in self.framed:
            n, c, d, h, w = self.shapes[name]
            moved = self.add("Transpose", [name], f"{name}/depth_first", perm=DEPTH_FIRST)
            self.framed[name] = self.reshape(moved, f"{name}/frames", (n * d, c, h, w))
        return self.framed[name]

    def make_whole(self, name: str) -> None:
        """Append the conversion of frames to volumes, unless the volumes already exist.

        Args:
            name: name of the tensor of volumes.
        """
        if name in self.framed and name not in self._whole:
            n, c, d, h, w = self.shapes[name]
            apart = self.reshape(self.framed[name], f"{name}/depth", (n, d, c, h, w))
            self.add("Transpose", [apart], name, perm=DEPTH_FIRST)
            self._whole.add(name)

    def append_whole(self, node: onnx.NodeProto) -> None:
        """Append an operator of the original graph, which reads and writes volumes."""
        self.nodes.append(node)
        self._whole.update(node.output)

    def append(self, node: onnx.NodeProto) -> None:
        """Append an operator of the original graph that was changed to read and write frames.

        Args:
            node: the operator, which still has the name of the volumes as its output. The output is
                renamed and recorded as frames.
        """
        name = node.output[0]
        node.output[0] = self.framed[name] = f"{name}/frames"
        self.nodes.append(node)

    def add(self, kind: str, inputs: Sequence[str], result: str, **attributes: object) -> str:
        """Append an operator that the original graph does not contain.

        Args:
            kind: ONNX type of the operator.
            inputs: names of the input tensors.
            result: name of the result.
            **attributes: attributes of the operator.

        Returns:
            The name of the result.
        """
        name = f"{result}/{kind.lower()}"
        while name in self._names:
            name += "_"
        self._names.add(name)
        node = helper.make_node(kind, inputs, [result], name=name, **attributes)
        self.nodes.append(node)
        self.normal.add_operator(node)
        return result

    def reshape(self, source: str, result: str, shape: Shape) -> str:
        """Append a Reshape and return the name of its result.

        Args:
            source: name of the tensor to reshape.
            result: name of the result.
            shape: shape of the result.
        """
        wanted = self._constant(f"{result}/shape", np.array(shape, np.int64))
        return self.add("Reshape", [source, wanted], result)

    def gather(self, source: str, result: str, volumes: str, places: Indices) -> str:
        """Select frames of each volume. Indices outside the volume select zeros.

        Args:
            source: name of the frames, of shape (n · d, c, ...).
            result: prefix of the names of new tensors.
            volumes: name of the tensor of volumes (n, c, d, h, w).
            places: frame indices within each volume, of shape (m,).

        Returns:
            Name of the selected frames, of shape (n · m, c, ...).
        """
        images, depth = self.shapes[volumes][0:3:2]
        inside = (places >= 0) & (places < depth)
        chosen = (np.arange(images)[:, None] * depth + np.where(inside, places, 0)).ravel()
        gathered = source
        if not np.array_equal(chosen, np.arange(images * depth)):
            where = self._constant(f"{result}/places", chosen)
            gathered = self.add("Gather", [source, where], f"{result}/gathered")
        if inside.all():
            return gathered
        mask = self._constant(f"{result}/inside", np.tile(inside, images).reshape(-1, 1, 1, 1))
        zero = self._constant(f"{result}/zero", np.zeros((), np.float32))
        return self.add("Where", [mask, gathered, zero], f"{result}/padded")

    def derive_constant(self, name: str, tail: str, change: Callable[[Numbers], Numbers]) -> str:
        """Add a constant that is computed from another constant, and return its name.

        If the other constant has no data, the new constant has none either.

        Args:
            name: name of the other constant.
            tail: suffix of the new name.
            change: computes the new values.
        """
        result, tensor = f"{name}/{tail}", self.constants[name]
        if result in self.constants:
            return result
        if is_stub(tensor):
            kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            shape = change(np.broadcast_to(np.zeros((), kind), tuple(tensor.dims))).shape
            derived = stub(result, shape, tensor.data_type)
        else:
            numbers = np.ascontiguousarray(change(numpy_helper.to_array(tensor)))
            derived = numpy_helper.from_array(numbers, result)
        self.normal.add_tensor(derived)
        self.constants[result] = derived
        return result

    def _constant(self, name: str, values: Numbers) -> str:
        self.normal.add_tensor(numpy_helper.from_array(values, name))
        return name


PER_PIXEL = PER_ELEMENT - {"GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization"}
"""Operators that compute each frame of a volume separately."""
OF_KERNEL = frozenset(("kernel_shape", "strides", "dilations", "output_padding"))
"""Attributes that have one value per spatial dimension."""


def as_frames(normal: NormalGraph) -> None:
    """Rewrite 3-D convolutions in a graph as 2-D convolutions, in place.

    This applies to convolutions of float32 data with constant weights (o, c, kd, kh, kw). A graph
    without such convolutions is not changed.

    Raises:
        ModelFileError: the graph contradicts itself.
    """
    writer = _FrameWriter(normal)
    if not any(writer.convolves(node) for node in normal.graph.node):
        return
    for node in normal.graph.node:
        writer.write(node)
    writer.finish()


class _FrameWriter:
    """Writes the operators of a graph one by one, with volumes converted to frames.

    A volume has shape (n, c, d, h, w). Its frames are n · d images of shape (c, h, w). An operator
    for which no rule exists reads and writes volumes, as in the source graph.

    Args:
        normal: the graph.
    """

    def __init__(self, normal: NormalGraph) -> None:
        self._frames = Frames(normal)
        self._shapes, self._constants = self._frames.shapes, self._frames.constants
        rules: tuple[tuple[Callable[[onnx.NodeProto], bool], Callable[[onnx.NodeProto], None]], ...]
        rules = (
            (self._is_convolution, self._convolution),
            (self._is_transposed, self._write_transposed),
            (self._is_pool, self._pool),
            (self._is_per_pixel, self._per_pixel),
            (self._is_broadcast, self._broadcast),
            (self._is_concatenation, self._concatenation),
        )
        self._rules = rules

    def convolves(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is a 3-D convolution, possibly transposed, that is rewritten."""
        return self._is_convolution(node) or self._is_transposed(node)

    def write(self, node: onnx.NodeProto) -> None:
        """Append an operator of the source graph.

        It is changed to read and write frames if one of the rules applies to it.

        Args:
            node: the operator.
        """
        for applies, rule in self._rules:
            if node.domain in STANDARD_DOMAINS and applies(node):
                rule(node)
                return
        for name in read_names(node):
            self._frames.make_whole(name)
        self._frames.append_whole(node)

    def finish(self) -> None:
        """Replace the operators of the graph by the written operators, and infer shapes again."""
        normal, nodes = self._frames.normal, self._frames.nodes
        graph = normal.graph
        for output in graph.output:
            self._frames.make_whole(output.name)
        normal.replace_nodes(nodes)
        written = {name for node in nodes for name in node.output}
        kept = [info for info in graph.value_info if info.name in written]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        infer_shapes(normal)

    def _is_windowed(self, node: onnx.NodeProto) -> bool:
        """Return whether a node applies windows with explicit padding to volumes.

        The node is a convolution or pool. It must have a single output, and no negative padding.
        """
        single = len([name for name in node.output if name]) == 1
        padding = {a.name: a.s for a in node.attribute}.get("auto_pad", b"NOTSET")
        pads = _ints(node).get("pads", (0,))
        known = self._frames.is_volume(node.input[0]) and self._frames.is_volume(node.output[0])
        standard = node.domain in STANDARD_DOMAINS
        return standard and single and known and padding == b"NOTSET" and min(pads) >= 0

    def _has_weights(self, node: onnx.NodeProto) -> bool:
        weight = self._constants.get(node.input[1])
        kinds = {self._frames.types.get(name) for name in node.input if name}
        return weight is not None and len(weight.dims) == VOLUME and kinds == {1}

    def _is_convolution(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Conv" and self._is_windowed(node) and self._has_weights(node)

    def _convolution(self, node: onnx.NodeProto) -> None:
        data, weight = node.input[:2]
        source, taps = self._frames.frames_of(data), self._shapes[weight][2]
        windows = self._windows(node, taps)
        grouped = {a.name: a.i for a in node.attribute}.get("group", 1) > 1
        _drop_depth(node)
        if grouped and taps > 1:
            self._sum_of_taps(node, source, windows)
            return
        base = f"{node.output[0]}/taps"
        node.input[0] = self._frames.gather(source, base, data, windows.ravel())
        if taps > 1:
            n, c, _, h, w = self._shapes[data]
            shape = n * len(windows), taps * c, h, w
            node.input[0] = self._frames.reshape(node.input[0], f"{base}/beside", shape)
        node.input[1] = self._frames.derive_constant(weight, "frames", _taps_as_channels)
        self._frames.append(node)

    def _sum_of_taps(self, node: onnx.NodeProto, source: str, windows: Indices) -> None:
        """Write a 3-D convolution as a sum of 2-D convolutions, one per depth index of the kernel.

        This form is used for grouped convolutions, where the frames under the kernel cannot simply
        be stacked as channels, because each group would need its own.

        Args:
            node: the 3-D convolution.
            source: name of the frames that it reads.
            windows: indices of the frames that each output frame reads, of shape (d, taps).
        """
        (data, weight), result, total = node.input[:2], node.output[0], ""
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        last = windows.shape[1] - 1
        for tap in range(last + 1):
            base = f"{result}/taps/{tap}"
            read = self._frames.gather(source, base, data, windows[:, tap])
            inputs = [read, self._frames.derive_constant(weight, str(tap), partial(_one_tap, tap))]
            if tap == last:  # the original node computes the last tap, with the bias
                node.input[0], node.input[1] = inputs
                node.output[0] = product = f"{base}/product"
                self._frames.nodes.append(node)
            else:
                product = self._frames.add("Conv", inputs, f"{base}/product", **attributes)
            total = self._frames.add("Add", [product, total], f"{base}/sum") if total else product
        self._frames.framed[result] = total

    def _windows(self, node: onnx.NodeProto, taps: int) -> Indices:
        """Return the indices of the input frames that each output frame reads.

        Args:
            node: the convolution or pool.
            taps: length of its window along depth.

        Returns:
            Int array of shape (output depth, taps). Indices in the padding lie outside the volume.
        """
        numbers = _ints(node)
        stride, dilation = (numbers.get(name, (1,))[0] for name in ("strides", "dilations"))
        begin, length = numbers.get("pads", (0,))[0], self._shapes[node.output[0]][2]
        windows: Indices = np.arange(length)[:, None] * stride - begin + np.arange(taps) * dilation
        return windows

    def _is_transposed(self, node: onnx.NodeProto) -> bool:
        """Return whether a transposed convolution can be rewritten.

        The length of the kernel along depth must equal the stride, and the output must not be
        cropped along depth.
        """
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

    def _write_transposed(self, node: onnx.NodeProto) -> None:
        n, c, d, h, w = self._shapes[node.output[0]]
        taps = self._shapes[node.input[1]][2]
        node.input[0] = self._frames.frames_of(node.input[0])
        node.input[1] = self._frames.derive_constant(node.input[1], "frames", _taps_as_channels)
        if len(node.input) > 2 and node.input[2]:
            node.input[2] = self._frames.derive_constant(
                node.input[2], f"repeated_{taps}", lambda bias: np.tile(bias, taps)
            )
        _drop_depth(node)
        name = node.output[0]
        node.output[0] = f"{name}/taps"
        self._frames.nodes.append(node)
        self._frames.framed[name] = self._frames.reshape(
            f"{name}/taps", f"{name}/frames", (n * d, c, h, w)
        )

    def _is_pool(self, node: onnx.NodeProto) -> bool:
        """Return whether a pool can be rewritten.

        It must either pool single frames, or be a MaxPool in which every window contains at least
        one frame. In both cases, every window must begin before the end of the data.
        """
        if node.op_type not in ("MaxPool", "AveragePool") or not self._is_windowed(node):
            return False
        numbers, sizes = _ints(node), self._shapes[node.input[0]][2:]
        ends = self._shapes[node.output[0]][2:]
        strides, pads = numbers.get("strides", (1,) * 3), numbers.get("pads", (0,) * 6)
        begins = [(end - 1) * s - p for end, s, p in zip(ends, strides, pads[:3], strict=True)]
        if any(begin >= size for begin, size in zip(begins, sizes, strict=True)):
            return False  # ONNX's shape inference counts such windows, but no engine computes them
        windows = self._windows(node, numbers["kernel_shape"][0])
        inside = (windows >= 0) & (windows < sizes[0])
        single = windows.shape[1] == 1 and bool(inside.all())
        return single or (node.op_type == "MaxPool" and bool(inside.any(axis=1).all()))

    def _pool(self, node: onnx.NodeProto) -> None:
        data, windows = node.input[0], self._windows(node, _ints(node)["kernel_shape"][0])
        inside = (windows >= 0) & (windows < self._shapes[data][2])
        # The first frame of each window that is inside.
        some = windows[np.arange(len(windows)), inside.argmax(axis=1)]
        places = np.where(inside, windows, some[:, None])
        node.input[0] = self._frames.frames_of(data)
        _drop_depth(node)
        name = node.output[0]
        node.output[0] = pooled = f"{name}/pooled"
        self._frames.nodes.append(node)
        taps = [
            self._frames.gather(pooled, f"{pooled}/{tap}", data, column)
            for tap, column in enumerate(places.T)
        ]
        largest = taps[0]
        for tap, other in enumerate(taps[1:], 1):
            largest = self._frames.add("Max", [largest, other], f"{pooled}/largest_{tap}")
        self._frames.framed[name] = largest

    def _is_per_pixel(self, node: onnx.NodeProto) -> bool:
        single = len([name for name in node.output if name]) == 1
        return node.op_type in PER_PIXEL and node.input[0] in self._frames.framed and single

    def _per_pixel(self, node: onnx.NodeProto) -> None:
        node.input[0] = self._frames.framed[node.input[0]]
        self._frames.append(node)

    def _is_broadcast(self, node: onnx.NodeProto) -> bool:
        """Return whether an elementwise operator can be applied to frames.

        Its inputs must be volumes of the same depth, single frames, or constants that are equal in
        all frames.
        """
        if node.op_type not in BROADCAST or not any(n in self._frames.framed for n in node.input):
            return False
        names = [name for name in node.input if name not in self._constants]
        fits = all(map(self._frames.is_volume, names)) and self._frames.is_volume(node.output[0])
        n, _, d, _, _ = self._shapes[node.output[0]] if fits else (0,) * VOLUME
        image_depths = {self._shapes[name][0:3:2] for name in names} if fits else ()
        constants = [self._constants[name] for name in node.input if name in self._constants]
        return (
            fits
            and all(
                image_depth == (n, d) or (n == 1 and image_depth == (1, 1))
                for image_depth in image_depths
            )
            and all(_is_equal_in_frames(tensor) for tensor in constants)
        )

    def _broadcast(self, node: onnx.NodeProto) -> None:
        for place, name in enumerate(node.input):
            constant = name in self._constants
            node.input[place] = (
                self._without_depth(name) if constant else self._frames.frames_of(name)
            )
        self._frames.append(node)

    def _without_depth(self, name: str) -> str:
        """Return the name of a constant that is reshaped so that it broadcasts with frames.

        Args:
            name: name of the constant, which broadcasts with volumes (n, c, d, h, w). The reshaped
                constant is added on first use.
        """
        if len(self._constants[name].dims) < 3:
            return name
        return self._frames.derive_constant(name, "frames", lambda v: v.squeeze(-3))

    def _is_concatenation(self, node: onnx.NodeProto) -> bool:
        """Return whether a node concatenates volumes along their channels."""
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        known = any(name in self._frames.framed for name in node.input)
        return (
            node.op_type == "Concat"
            and axis in (1, 1 - VOLUME)
            and known
            and all(map(self._frames.is_volume, node.input))
        )

    def _concatenation(self, node: onnx.NodeProto) -> None:
        next(a for a in node.attribute if a.name == "axis").i = 1
        for place, name in enumerate(node.input):
            node.input[place] = self._frames.frames_of(name)
        self._frames.append(node)


def _is_equal_in_frames(tensor: onnx.TensorProto) -> bool:
    sizes = (1,) * (VOLUME - len(tensor.dims)) + tuple(tensor.dims)
    return len(sizes) == VOLUME and sizes[0] == sizes[2] == 1


def _ints(node: onnx.NodeProto) -> Mapping[str, tuple[int, ...]]:
    return {attribute.name: tuple(attribute.ints) for attribute in node.attribute if attribute.ints}


def _drop_depth(node: onnx.NodeProto) -> None:
    """Remove the depth from the attributes of a convolution or pool."""
    for attribute in node.attribute:
        if attribute.name in OF_KERNEL:
            set_ints(attribute, attribute.ints[1:])
        elif attribute.name == "pads":
            _, top, left, _, bottom, right = attribute.ints
            set_ints(attribute, [top, left, bottom, right])


def _taps_as_channels(weight: Numbers) -> Numbers:
    """Reshape weights (o, c, kd, kh, kw) to (o, kd * c, kh, kw)."""
    o, c, kd, kh, kw = weight.shape
    return weight.transpose(DEPTH_FIRST).reshape(o, kd * c, kh, kw)


def _one_tap(tap: int, weight: Numbers) -> Numbers:
    """Return the part of 3-D convolution weights that belongs to one depth index of the kernel.

    Args:
        tap: the depth index.
        weight: weights of shape (o, c, kd, kh, kw).

    Returns:
        Weights of shape (o, c, kh, kw).
    """
    return weight[:, :, tap]
