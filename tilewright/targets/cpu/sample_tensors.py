"""Makes seeded tensors of a workload in the layouts of its kernels, and the right answer.

`SampleTensors` is what measuring and tests use. Below it are the numbers and the references of
workloads in float32, in int8, and of integers that stand for reals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.core.bfloat16 import rounded_array, widened_array
from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, RuntimeTensor
from tilewright.targets.base import Space
from tilewright.targets.cpu.kernels.epilogue import A_CHANNEL, QUANTISATION, epilogue_tensors
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.layouts import channel_block, pack_channels, unpack_channels
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.integer_reference import reference as computed_reference
from tilewright.targets.integer_reference import sums
from tilewright.targets.steps.float_activations import FUNCTIONS
from tilewright.targets.steps.quantised import BYTES, LIMITS, NUMBERS, TensorScale, packed
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
        self.data: Array
        self.weights: Array
        self.added: dict[str, Array]
        self.expected: Array
        self.spread: Array = np.zeros(())
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

    def arguments(self, values: KnobValues) -> list[RuntimeTensor]:
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

    def nothing(self) -> Array:
        """An output in which every number is wrong, in the kernels' layout."""
        shape = kernel_for(self.workload, self.spec).out_shape(self.workload, self.spec)
        if self.workload.out_dtype == "float32":
            return np.full(shape, np.nan, np.float32)
        right = np.rint(self.expected).astype(self.workload.out_dtype)
        return ~self._packed(right, self.workload.out_channels).reshape(shape)

    def unpacked(self, packed: Array) -> Array:
        """An output in the kernels' layout as the model has it."""
        if not self._blocked:
            return packed
        like = pack_channels(self.expected, packed.shape[-1]).shape
        return unpack_channels(packed.reshape(like))

    def error(self, packed: Array) -> float:
        """Largest of `apart`, on the scale of the reference's largest value; infinite where a float
        was never written. Of int8 it is 0 or at least 1/128."""
        scale = max(float(np.abs(self.expected).max()), 1e-30)
        return float(self.apart(packed).max()) / scale

    def apart(self, packed: Array) -> NDArray[np.float64]:
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

    def _packed(self, tensor: Array, channels: int) -> Array:
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


# -- int8 --------------------------------------------------------------------------------------


Shape = tuple[int, ...]
INTERESTING = 40.0
"""Standard deviation of an int8 output's values: few are clipped, none is small."""


def random_integers(
    w: Workload, rng: np.random.Generator, shapes: tuple[Shape, Shape, Shape]
) -> tuple[NDArray[np.int8], NDArray[np.int8], dict[str, Array]]:
    """Data, weights and what the epilogue takes, of `shapes` (data, weights, output). Data have all
    values; weights are as large as leaves most outputs within int8 after the shifts, and a few at
    either end."""
    data, weights, out = shapes
    fan_in = w.in_channels // w.groups * w.kernel_h * w.kernel_w
    shift = sum(
        op.amounts[0] * (-1 if op.kind == "shl" else 1)
        for op in w.epilogue
        if op.kind in ("shr", "shl", "shr_channel")
    )
    spread = min(max(INTERESTING * 2.0**shift / (74 * np.sqrt(fan_in)), 1.0), 64.0)
    drawn = np.clip(np.rint(rng.normal(0, spread, weights)), -128, 127).astype(np.int8)
    ends = rng.random(weights) < 1 / 256
    drawn[ends] = rng.choice(np.array([-128, 127], np.int8), int(ends.sum()))
    limit = 1 << min(max(shift + 6, 1), 19)
    bias = rng.integers(-limit, limit, w.out_channels, np.int32)
    if EpilogueOp("bias", 32) in w.epilogue:  # of all sizes
        bias = rng.integers(-(1 << 31), 1 << 31, w.out_channels, np.int32)
        bias >>= rng.integers(0, 32, w.out_channels, np.int32)
    added: dict[str, Array] = {
        "bias": bias,
        "add": rng.integers(-limit, limit, out, np.int32),
        "residual": rng.integers(-128, 128, out, np.int8),
    }
    for op in w.epilogue:
        if op.kind == "shr_channel":
            least, most = op.amounts
            added["shr_channel"] = rng.integers(least, most + 1, w.out_channels, np.int32)
    return rng.integers(-128, 128, data, np.int8), drawn, added


def integer_reference(
    w: Workload,
    data: NDArray[np.int8],
    weights: NDArray[np.int8],
    added: Mapping[str, Array],
    out: Shape,
) -> NDArray[np.int8]:
    """What `targets.reference` says, of shape `out`; tensors of any workload as a model has them,
    (n, c, h, w) and (o, c / groups, kh, kw), or (rows, channels) and (out, in)."""

    if w.operator == "batch_matmul":  # each product a dense layer
        dense = replace(w, operator="dense", batch=w.height, height=1)

        def of(each: int) -> dict[str, Array]:
            return {n: a if n in A_CHANNEL else a[each] for n, a in added.items()}

        parts = [
            integer_reference(dense, data[each], weights[each].T, of(each), out[1:])
            for each in range(w.batch)
        ]
        return np.stack(parts)

    def image(tensor: Array) -> Array:
        return tensor.reshape(*tensor.shape, *[1] * (4 - tensor.ndim))

    tensors = {
        name: array if name in A_CHANNEL else image(array)
        for name, array in {"data": data, "weight": weights, **added}.items()
    }
    return computed_reference(w, tensors).astype(np.int8).reshape(out)


# -- integers that stand for reals -------------------------------------------------------------


SPREAD = 1.5
"""Standard deviation of the real results: bounds of a few ones clip some of them."""
TIE = 0.02
"""Steps that a real may be from a tie and be rounded to either side. Winograd's sums of float32 are
up to a hundredth off."""


@dataclass(frozen=True, eq=False)
class RandomQuantised:
    """Tensors as a model has them: data and what is added like the output (n, c, h, w) or (rows,
    channels), weights (o, c / groups, kh, kw) or (out, in) less their zero points. `tensors` are
    what the epilogue takes, by name."""

    data: Array
    weights: NDArray[np.int8]
    data_zero: int
    scales: tuple[TensorScale, ...]
    tensors: dict[str, Array]

    @classmethod
    def of(
        cls, w: Workload, rng: np.random.Generator, shapes: tuple[Shape, Shape, Shape]
    ) -> RandomQuantised:
        """Of `shapes` (data, weights, output). All numbers that there are; scales that leave most
        results within the output's, and some at either end."""
        data, weights, out = shapes

        def drawn(kind: str, shape: Shape) -> Array:
            least, most = LIMITS[kind]
            return rng.integers(least, most + 1, shape).astype(kind)

        def zero(kind: str) -> int:
            least, most = LIMITS[kind]
            return int(rng.choice(np.array([least, most, int(rng.integers(least, most + 1)), 0])))

        fan_in = int(np.prod(weights[1:]))
        scales = SPREAD / (74 * 74 * np.sqrt(fan_in)) * rng.uniform(0.3, 2, w.out_channels)
        steps = [step for step in w.epilogue if step.kind in NUMBERS]
        each = {"add_dequantised": SPREAD / 74, "round": SPREAD / 40, "quantise": SPREAD / 40}
        given = tuple(
            TensorScale(kind, each[step.kind] * rng.uniform(0.5, 2), zero(kind))
            for step in steps
            if (kind := BYTES[step.value])
        )
        data_zero = zero(w.data_dtype)
        added = next((BYTES[s.value] for s in steps if s.kind == "add_dequantised"), "int8")
        tensors = {
            QUANTISATION: packed(data_zero, [step.kind for step in steps], given),
            "scale": scales.astype(np.float32),
            "bias": rng.normal(0, SPREAD, w.out_channels).astype(np.float32),
            "added": drawn(added, out),
        }
        return cls(drawn(w.data_dtype, data), drawn("int8", weights), data_zero, given, tensors)

    def expected(self, w: Workload) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The least and the largest right results in float64, of the output's shape: integers
        before they are rounded. They differ where an inner rounding is nearly a tie."""

        def image(tensor: Array) -> Array:
            return tensor.reshape(*tensor.shape, *[1] * (4 - tensor.ndim))

        data = image(self.data).astype(np.int64) - self.data_zero
        scales = iter(self.scales)
        found = sums(w, {"data": data, "weight": image(self.weights).astype(np.int64)})
        ends = np.stack([found, found]).astype(np.float64)
        for step in w.epilogue:
            given = next(scales) if step.kind in NUMBERS else None
            if step.kind == "dequantise":
                ends = ends * self.tensors["scale"][:, None, None]
            elif step.kind == "bias":
                ends = ends + self.tensors["bias"][:, None, None]
            elif given is None:
                clip = np.maximum if step.kind == "max" else np.minimum
                ends = clip(ends, float(step.value))
            elif step.kind == "add_dequantised":
                integers = image(self.tensors["added"]).astype(np.float64) - given.zero
                ends = ends + integers * given.scale
            elif step.kind == "round":
                near = ends / given.scale + np.array([-TIE, TIE])[:, None, None, None, None]
                ends = np.clip(np.rint(near), *given.bounds()) * given.scale
            else:
                ends = np.clip(ends / given.scale, *given.bounds()) + given.zero
        least, most = ends.reshape(2, *self.tensors["added"].shape)
        return least, most
