"""Makes seeded tensors of a workload in the layouts of its kernels, and the right answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.bfloat16 import rounded_array, widened_array
from tilewright.core.lazy_module import lazy_module
from tilewright.targets.base import Space
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.kernels.shared import A_CHANNEL, QUANTISATION, epilogue_tensors
from tilewright.targets.cpu.layouts import channel_block, pack_channels, unpack_channels
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.cpu.test_tensors_int8 import integer_reference, random_integers
from tilewright.targets.cpu.test_tensors_quantised import RandomQuantised
from tilewright.targets.steps.float_activations import FUNCTIONS
from tilewright.targets.workload import Workload

tvm = lazy_module("tvm")


class SampleTensors:
    """Of one workload; made once and shared by all its configs. Everything as a model has it: data
    and what is `added` like the output (n, c, h, w), (rows, channels) or (batch, rows, depth),
    weights (o, c, kh, kw), (out, in) or (batch, depth, columns), what is `added` a channel (out
    channels,)."""

    def __init__(self, workload: Workload, spec: CpuSpec, space: Space, seed: int = 0) -> None:
        w = workload
        rng = np.random.default_rng(seed)
        self.workload, self.spec, self.space = workload, spec, space
        data, weights, out = plain_shapes(w)
        fan_in = w.in_channels // w.groups * w.kernel_h * w.kernel_w
        self.data: NDArray[Any]
        self.weights: NDArray[Any]
        self.added: dict[str, NDArray[Any]]
        self.expected: NDArray[Any]
        self.spread: NDArray[Any] = np.zeros(())
        if w.dequantises:
            drawn = RandomQuantised.of(w, rng, plain_shapes(w))
            self.data, self.weights, self.added = drawn.data, drawn.weights, drawn.tensors
            least, most = drawn.expected(w)
            self.expected, self.spread = (least + most) / 2, (most - least) / 2
            return
        if w.dtype == "int8":
            self.data, self.weights, self.added = random_integers(w, rng, plain_shapes(w))
            self.expected = integer_reference(w, self.data, self.weights, self.added, out)
            return
        self.data = _normal(rng, data)
        self.weights = _normal(rng, weights) / np.float32(np.sqrt(fan_in))
        self.added = {"bias": _normal(rng, (w.out_channels,)), "residual": _normal(rng, out)}
        factors = [self.data, self.weights]
        if w.dtype == "bfloat16":
            factors = [widened_array(rounded_array(each)) for each in factors]
        self.expected = reference(w, *factors, **self.added)

    def arguments(self, values: KnobValues) -> list[Any]:
        """TVM's tensors for a kernel of that config; the last is the output."""
        w, kernel = self.workload, kernel_for(self.workload, self.spec)
        shape = kernel.out_shape(w, self.spec)
        arrays = [
            self._packed(self.data, w.in_channels).reshape(kernel.data_shape(w, self.spec)),
            kernel.pack_weights(self.weights, w, self.spec, values),
        ]
        block = channel_block(w.out_channels, self.spec.lanes)
        for name in epilogue_tensors(w):
            array = self.added[name]
            if name == QUANTISATION:
                arrays.append(array)
            elif name in A_CHANNEL:
                arrays.append(array.reshape(-1, block) if self._blocked else array)
            else:
                arrays.append(self._packed(array, w.out_channels).reshape(shape))
        arrays.append(self.nothing())
        return [tvm.runtime.tensor(array) for array in arrays]

    def nothing(self) -> NDArray[Any]:
        """An output in which every number is wrong, in the kernels' layout."""
        shape = kernel_for(self.workload, self.spec).out_shape(self.workload, self.spec)
        if self.workload.out_dtype == "float32":
            return np.full(shape, np.nan, np.float32)
        right = np.rint(self.expected).astype(self.workload.out_dtype)
        return ~self._packed(right, self.workload.out_channels).reshape(shape)

    def unpacked(self, packed: NDArray[Any]) -> NDArray[Any]:
        """An output in the kernels' layout as the model has it."""
        if not self._blocked:
            return packed
        like = pack_channels(self.expected, packed.shape[-1]).shape
        return unpack_channels(packed.reshape(like))

    def error(self, packed: NDArray[Any]) -> float:
        """Largest of `apart`, on the scale of the reference's largest value; infinite where a float
        was never written. Of int8 it is 0 or at least 1/128."""
        scale = max(float(np.abs(self.expected).max()), 1e-30)
        return float(self.apart(packed).max()) / scale

    def apart(self, packed: NDArray[Any]) -> NDArray[np.float64]:
        """By how much each number of an output in the kernels' layout differs from the reference,
        in the model's shape; infinite where that is no number. A real may be rounded to either
        integer that is half a step away."""
        result = self.unpacked(packed)
        off = np.abs(np.subtract(result, self.expected, dtype=np.float64)) - self.spread
        if self.workload.dequantises and self.workload.out_dtype != "float32":
            off = off - 0.5
        return np.where(np.isfinite(result), np.maximum(off, 0.0), np.inf)

    @property
    def _blocked(self) -> bool:
        """Whether channels lie in blocks between its kernels."""
        return self.workload.operator == "conv2d"

    def _packed(self, tensor: NDArray[Any], channels: int) -> NDArray[Any]:
        if not self._blocked:
            return tensor
        return pack_channels(tensor, channel_block(channels, self.spec.lanes))


def plain_shapes(w: Workload) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of data, weights and output, as a model has them."""
    if w.operator == "dense":
        weights = w.out_channels, w.in_channels
        return (w.batch, w.in_channels), weights, (w.batch, w.out_channels)
    if w.operator == "batch_matmul":
        return (
            (w.batch, w.height, w.in_channels),
            (w.batch, w.in_channels, w.out_channels),
            (w.batch, w.height, w.out_channels),
        )
    return (
        (w.batch, w.in_channels, w.height, w.width),
        (w.out_channels, w.in_channels // w.groups, w.kernel_h, w.kernel_w),
        (w.batch, w.out_channels, w.out_height, w.out_width),
    )


def reference(
    w: Workload,
    data: NDArray[np.float32],
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
    residual: NDArray[np.float32],
) -> NDArray[np.float32]:
    """The operator by numpy, with its epilogue; all of the shapes of `plain_shapes`, the bias
    (out channels,)."""
    if w.operator == "dense":
        found = data @ weights.T
    elif w.operator == "batch_matmul":
        found = data @ weights
    else:
        found = _convolution(w, data, weights)
        bias = bias[:, None, None]
    for step in w.epilogue:
        if step.kind == "bias":
            found = found + bias
        elif step.kind == "residual":
            found = found + residual
        elif step.kind in FUNCTIONS:
            found = FUNCTIONS[step.kind](found.astype(np.float64))
        else:
            clip = np.maximum if step.kind == "max" else np.minimum
            found = clip(found, np.float32(step.value))
    return np.ascontiguousarray(found, dtype=np.float32)


def _convolution(
    w: Workload, data: NDArray[np.float32], weights: NDArray[np.float32]
) -> NDArray[np.float32]:
    """(n, c, h, w) and (o, c / groups, kh, kw) → (n, o, oh, ow)."""
    pads = ((0, 0), (0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right))
    padded = np.pad(data, pads)
    height, width = w.out_height, w.out_width
    inside, outside = w.in_channels // w.groups, w.out_channels // w.groups
    kernels = weights.reshape(w.groups, outside, inside, w.kernel_h, w.kernel_w)
    found = np.zeros((w.batch, w.groups, outside, height * width), np.float32)
    # One product of matrices per tap: all windows at once would take as many times the memory.
    image = np.empty((w.batch, w.in_channels, height, width), np.float32)
    for y, x in np.ndindex(w.kernel_h, w.kernel_w):
        top, left = y * w.dilation_h, x * w.dilation_w
        bottom = top + (height - 1) * w.stride_h + 1
        right = left + (width - 1) * w.stride_w + 1
        image[...] = padded[:, :, top : bottom : w.stride_h, left : right : w.stride_w]
        pixels = image.reshape(w.batch, w.groups, inside, height * width)
        taps = np.ascontiguousarray(kernels[..., y, x])
        found += taps * pixels if inside == 1 else taps @ pixels
    return found.reshape(w.batch, w.out_channels, height, width)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return rng.standard_normal(shape, dtype=np.float32)
