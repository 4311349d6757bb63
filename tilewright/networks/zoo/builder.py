"""Builds the ONNX graph of a network layer by layer, with shapes and random weights.

Every weight tensor has its own random stream, seeded by (seed, index of the tensor). A model that
is built without weight data therefore has the same graph as a model with weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tilewright.networks.onnx.files import stub

OPSET = 17
IR_VERSION = 8

Pair = int | tuple[int, int]
"""Either one number for both dimensions, or a pair (height, width)."""


class Builder:
    """An ONNX graph under construction. Methods append a layer and return the name of its output.

    Images have shape (batch, channels, height, width), and sequences (batch, tokens, features).

    Args:
        name: name of the network.
        input_shape: shape of the input.
        seed: seed for the random weights.
        weights: if false, weight tensors have shapes but no data.
        input_name: name of the input.
        input_type: ONNX element type of the input.

    Attributes:
        input: name of the input.
        values: trained weights by tensor name, used in place of random weights.
        shapes: shape of each tensor, by name.
    """

    def __init__(
        self, name: str, input_shape: Sequence[int], seed: int, weights: bool,
        input_name: str = "input", input_type: int = TensorProto.FLOAT,
    ) -> None:  # fmt: skip
        self.name = name
        self.seed = seed
        self.weights = weights
        self.input = input_name
        self.input_type = input_type  # one of ONNX's element types
        self.values: Mapping[str, NDArray[np.float32]] = {}  # trained weights by tensor name
        self.shapes: dict[str, tuple[int, ...]] = {self.input: tuple(input_shape)}
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []

    def model(self, output: str) -> onnx.ModelProto:
        """Return the finished ONNX model.

        Args:
            output: name of its only output.
        """
        info = [
            helper.make_tensor_value_info(tensor, kind, self.shapes[tensor])
            for tensor, kind in ((self.input, self.input_type), (output, TensorProto.FLOAT))
        ]
        graph = helper.make_graph(self._nodes, self.name, info[:1], info[1:], self._tensors)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(
            graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="tilewright"
        )

    def conv(
        self, x: str, name: str, out_channels: int, kernel: Pair, stride: int = 1, pad: Pair = 0,
        groups: int = 1, bias: bool = False,
    ) -> str:  # fmt: skip
        """Append a convolution with OIHW weights (He initialisation).

        Args:
            x: name of the input.
            name: name of the layer.
            out_channels: number of output channels.
            kernel: size of the kernel, or (height, width).
            stride: stride in both directions.
            pad: padding on each side, or (vertical, horizontal).
            groups: number of groups.
            bias: add a bias to the convolution.

        Returns:
            The name of the output.
        """
        batch, channels, height, width = self.shapes[x]
        (kernel_h, kernel_w), (pad_h, pad_w) = _pair(kernel), _pair(pad)
        weight_shape = (out_channels, channels // groups, kernel_h, kernel_w)
        inputs = [x, self._he(f"{name}.weight", weight_shape)]
        if bias:
            inputs.append(self._normal(f"{name}.bias", (out_channels,), 0.01))
        out_h = (height + 2 * pad_h - kernel_h) // stride + 1
        out_w = (width + 2 * pad_w - kernel_w) // stride + 1
        return self._node(
            "Conv", inputs, name, (batch, out_channels, out_h, out_w),
            kernel_shape=[kernel_h, kernel_w], strides=[stride, stride],
            pads=[pad_h, pad_w, pad_h, pad_w], dilations=[1, 1], group=groups,
        )  # fmt: skip

    def batch_norm(self, x: str, name: str, epsilon: float = 1e-5) -> str:
        """Append a BatchNorm with random statistics: means near 0 and variances near 1.

        Args:
            x: name of the input.
            name: name of the layer.
            epsilon: number that is added to the variance.

        Returns:
            The name of the output.
        """
        channels = (self.shapes[x][1],)
        inputs = [
            x,
            self._uniform(f"{name}.weight", channels, 0.75, 1.25),
            self._normal(f"{name}.bias", channels, 0.1),
            self._normal(f"{name}.running_mean", channels, 0.1),
            self._uniform(f"{name}.running_var", channels, 0.75, 1.25),
        ]
        return self._node("BatchNormalization", inputs, name, self.shapes[x], epsilon=epsilon)

    def relu(self, x: str, name: str) -> str:
        """Append a ReLU, max(x, 0).

        Args:
            x: name of the input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        return self._node("Relu", [x], name, self.shapes[x])

    def relu6(self, x: str, name: str) -> str:
        """Append a ReLU6: a clip to the range 0 … 6.

        Args:
            x: name of the input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        bounds = [self.constant("zero", np.float32(0)), self.constant("six", np.float32(6))]
        return self._node("Clip", [x, *bounds], name, self.shapes[x])

    def hard_swish(self, x: str, name: str) -> str:
        """Append the hard swish, x · clip(x / 6 + 1/2, 0, 1).

        Args:
            x: name of the input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        return self._node("HardSwish", [x], name, self.shapes[x])

    def hard_sigmoid(self, x: str, name: str) -> str:
        """Append the hard sigmoid of PyTorch, clip(x / 6 + 1/2, 0, 1).

        ONNX's default slope is different.

        Args:
            x: name of the input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        return self._node("HardSigmoid", [x], name, self.shapes[x], alpha=1 / 6, beta=0.5)

    def gelu(self, x: str, name: str) -> str:
        """Append the exact GELU, x · (1 + erf(x / √2)) / 2.

        It is composed of operators that every ONNX version has.

        Args:
            x: name of the input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        root, half = (
            self.constant(text, np.float32(value))
            for text, value in (("sqrt_two", math.sqrt(2)), ("half", 0.5))
        )
        shape = self.shapes[x]
        y = self._node("Div", [x, root], f"{name}.div", shape)
        y = self._node("Erf", [y], f"{name}.erf", shape)
        y = self._node("Add", [y, self.constant("one", np.float32(1))], f"{name}.add", shape)
        y = self._node("Mul", [x, y], f"{name}.mul", shape)
        return self._node("Mul", [y, half], f"{name}.half", shape)

    def tanh(self, x: str, name: str) -> str:
        """Append the hyperbolic tangent.

        Args:
            x: name of the input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        return self._node("Tanh", [x], name, self.shapes[x])

    def softmax(self, x: str, name: str) -> str:
        """Append a softmax along the last dimension.

        Args:
            x: name of the input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        return self._node("Softmax", [x], name, self.shapes[x], axis=-1)

    def add(self, x: str, y: str, name: str) -> str:
        """Append the elementwise sum of two tensors, with broadcasting.

        Args:
            x: name of the input.
            y: name of the second input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        return self._elementwise("Add", x, y, name)

    def multiply(self, x: str, y: str, name: str) -> str:
        """Append the elementwise product of two tensors, with broadcasting.

        Args:
            x: name of the input.
            y: name of the second input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        return self._elementwise("Mul", x, y, name)

    def concat(self, xs: Sequence[str], name: str) -> str:
        """Append the concatenation of images along channels.

        Args:
            xs: names of the inputs.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        return self.join(xs, name, axis=1)

    def max_pool(self, x: str, name: str, kernel: int, stride: int, pad: int = 0) -> str:
        """Append a max-pool with square windows.

        Args:
            x: name of the input.
            name: name of the layer.
            kernel: height and width of the window.
            stride: stride in both directions.
            pad: padding on each side.

        Returns:
            The name of the output.
        """
        return self._pool("MaxPool", x, name, kernel, stride, pad)

    def average_pool(self, x: str, name: str, kernel: int, stride: int, pad: int = 0) -> str:
        """Append an average pool with square windows, which counts padding as zeros.

        Args:
            x: name of the input.
            name: name of the layer.
            kernel: height and width of the window.
            stride: stride in both directions.
            pad: padding on each side.

        Returns:
            The name of the output.
        """
        return self._pool("AveragePool", x, name, kernel, stride, pad, count_include_pad=1)

    def global_average_pool(self, x: str, name: str) -> str:
        """Append a global average pool; the result has shape (batch, channels, 1, 1).

        Args:
            x: name of the input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        return self._node("GlobalAveragePool", [x], name, (*self.shapes[x][:2], 1, 1))

    def flatten(self, x: str, name: str) -> str:
        """Append a Flatten of all axes except the batch; the result has shape (batch, features).

        Args:
            x: name of the input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        batch, *rest = self.shapes[x]
        return self._node("Flatten", [x], name, (batch, math.prod(rest)), axis=1)

    def dense(self, x: str, name: str, out_features: int) -> str:
        """Append a dense layer, x·Wᵀ + b, with weights W of shape (out, in).

        Args:
            x: name of the input.
            name: name of the layer.
            out_features: number of output features.

        Returns:
            The name of the output.
        """
        batch, features = self.shapes[x]
        weight = self._he(f"{name}.weight", (out_features, features))
        bias = self._normal(f"{name}.bias", (out_features,), 0.01)
        return self._node("Gemm", [x, weight, bias], name, (batch, out_features), transB=1)

    def linear(self, x: str, name: str, out_features: int) -> str:
        """Append x·W + b over the last dimension, as the MatMul and the Add that PyTorch exports.

        W has shape (in, out) and variance 1 / fan-in.

        Args:
            x: name of the input.
            name: name of the layer.
            out_features: number of output features.

        Returns:
            The name of the output.
        """
        features = self.shapes[x][-1]
        size = (features, out_features)
        weight = self._normal(f"{name}.weight", size, math.sqrt(1 / features))
        y = self.matmul(x, weight, f"{name}.matmul")
        bias = self._normal(f"{name}.bias", (out_features,), 0.01)
        return self.add(y, bias, f"{name}.add")

    def matmul(self, x: str, y: str, name: str) -> str:
        """Append the matrix product over the last two dimensions.

        The result keeps the leading dimensions of `x`.

        Args:
            x: name of the input.
            y: name of the second input.
            name: name of the layer.

        Returns:
            The name of the output.
        """
        return self._node("MatMul", [x, y], name, (*self.shapes[x][:-1], self.shapes[y][-1]))

    def layer_norm(self, x: str, name: str, epsilon: float) -> str:
        """Append a LayerNorm along the last dimension, with scale and bias.

        Args:
            x: name of the input.
            name: name of the layer.
            epsilon: number that is added to the variance.

        Returns:
            The name of the output.
        """
        size = (self.shapes[x][-1],)
        inputs = [
            x,
            self._uniform(f"{name}.weight", size, 0.75, 1.25),
            self._normal(f"{name}.bias", size, 0.1),
        ]
        return self._node(
            "LayerNormalization", inputs, name, self.shapes[x], axis=-1, epsilon=epsilon
        )

    def embedding(self, ids: str, name: str, rows: int, features: int) -> str:
        """Append a lookup of the rows `ids` of a weight table with shape (rows, features).

        The result has the shape of `ids` plus a last dimension for the features.

        Args:
            ids: name of the input, which holds row numbers.
            name: name of the layer.
            rows: number of rows of the table.
            features: number of columns of the table.

        Returns:
            The name of the output.
        """
        table = self.table(name, (rows, features))
        return self._node("Gather", [table, ids], name, (*self.shapes[ids], features), axis=0)

    def table(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a random weight tensor that is not part of a layer, such as a class token.

        Args:
            name: name of the tensor, without the suffix ".weight".
            shape: shape of the tensor. Its values have a standard deviation of 0.02.

        Returns:
            The full name of the tensor.
        """
        return self._normal(f"{name}.weight", shape, 0.02)

    def take(self, x: str, name: str, index: int, axis: int) -> str:
        """Append the selection of one index along an axis; the axis is removed.

        Args:
            x: name of the input.
            name: name of the layer.
            index: the index.
            axis: number of the axis.

        Returns:
            The name of the output.
        """
        which = self.constant(f"{name}.index", np.int64(index))
        shape = self.shapes[x]
        kept = (*shape[:axis], *shape[axis + 1 :])
        return self._node("Gather", [x, which], name, kept, axis=axis)

    def join(self, xs: Sequence[str], name: str, axis: int) -> str:
        """Append the concatenation of tensors along an axis.

        Args:
            xs: names of the inputs.
            name: name of the layer.
            axis: number of the axis.

        Returns:
            The name of the output.
        """
        shape = list(self.shapes[xs[0]])
        shape[axis] = sum(self.shapes[x][axis] for x in xs)
        return self._node("Concat", list(xs), name, tuple(shape), axis=axis)

    def reshape(self, x: str, name: str, shape: tuple[int, ...]) -> str:
        """Append a Reshape.

        Args:
            x: name of the input.
            name: name of the layer.
            shape: shape of the result.

        Returns:
            The name of the output.
        """
        target = self.constant(f"{name}.shape", np.array(shape, np.int64))
        return self._node("Reshape", [x, target], name, shape)

    def transpose(self, x: str, name: str, order: tuple[int, ...]) -> str:
        """Append a permutation of the axes.

        Args:
            x: name of the input.
            name: name of the layer.
            order: permutation of the axes.

        Returns:
            The name of the output.
        """
        shape = tuple(self.shapes[x][axis] for axis in order)
        return self._node("Transpose", [x], name, shape, perm=order)

    def constant(self, name: str, value: NDArray[Any] | np.generic) -> str:
        """Add a constant, unless a constant with its name exists already.

        Args:
            name: name of the constant.
            value: value of the constant.

        Returns:
            `name`.
        """
        if all(tensor.name != name for tensor in self._tensors):
            self._tensors.append(numpy_helper.from_array(np.asarray(value), name))
            self.shapes[name] = np.shape(value)
        return name

    def _elementwise(self, op: str, x: str, y: str, name: str) -> str:
        shape = np.broadcast_shapes(self.shapes[x], self.shapes[y])
        return self._node(op, [x, y], name, shape)

    def _pool(
        self, op: str, x: str, name: str, kernel: int, stride: int, pad: int, **attributes: int
    ) -> str:
        batch, channels, *image = self.shapes[x]
        height, width = ((size + 2 * pad - kernel) // stride + 1 for size in image)
        return self._node(
            op, [x], name, (batch, channels, height, width),
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, **attributes,
        )  # fmt: skip

    def _node(
        self, op: str, inputs: list[str], name: str, shape: tuple[int, ...], **attributes: Any
    ) -> str:
        output = f"{name}.out"
        self._nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        self.shapes[output] = shape
        return output

    def _he(self, name: str, shape: tuple[int, ...]) -> str:
        """Add random weights with the variance 2 / fan-in (He et al., ICCV 2015, eq. 10).

        Args:
            name: name of the weights.
            shape: shape (o, …) of the weights; the fan-in is the product of all sizes after the
                first.

        Returns:
            `name`.
        """
        return self._normal(name, shape, math.sqrt(2 / math.prod(shape[1:])))

    def _normal(self, name: str, shape: tuple[int, ...], deviation: float) -> str:
        if name in self.values:
            return self.constant(name, self.values[name])
        if not self.weights:
            return self._add_dataless(name, shape)
        values = self._stream().standard_normal(shape, dtype=np.float32) * np.float32(deviation)
        return self.constant(name, values)

    def _uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> str:
        if not self.weights:
            return self._add_dataless(name, shape)
        return self.constant(name, self._stream().uniform(low, high, shape).astype(np.float32))

    def _add_dataless(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a weight tensor without data."""
        self._tensors.append(stub(name, shape, TensorProto.FLOAT))
        self.shapes[name] = shape
        return name

    def _stream(self) -> np.random.Generator:
        """Return a new random generator for the next weight tensor."""
        return np.random.default_rng([self.seed, len(self._tensors)])


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
