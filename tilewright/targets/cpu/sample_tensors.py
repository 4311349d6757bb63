"""Random tensors of a workload in the layouts of its kernel, with the expected output.

`SampleTensors` is used to measure and to test kernels. The rest of the module creates random
tensors and computes expected outputs for three types of workloads: float32, int8, and quantised
workloads, whose integers represent real numbers.
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
from tilewright.targets.steps.quantised import BYTES, LIMITS, NUMBERS, TensorScale, pack_scales
from tilewright.targets.workload import Workload

tvm = lazy_module("tvm")


class SampleTensors:
    """Random tensors of one workload and the reference result, shared by all of its configs.

    Args:
        workload: the workload.
        spec: the processor.
        space: the search space of the workload.
        seed: seed of the random values.

    Attributes:
        data: the data in the model's layout, shape (n, c, h, w), (rows, channels) or (batch, rows,
            depth).
        weights: shape (o, c / groups, kh, kw), (out, in) or (batch, depth, columns).
        added: operands of the epilogue by name. They have the output's shape, or one value per
            output channel.
        expected: the reference result. For a quantised workload, the middle of the range of correct
            results.
        spread: half the width of the range of correct results, in the output's shape; 0 for other
            workloads.
    """

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
            drawn = RandomQuantised.draw(w, rng, plain_shapes(w))
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
            factors = [widened_array(rounded_array(factor)) for factor in factors]
        self.expected = reference(w, *factors, **self.added)

    def arguments(self, values: KnobValues) -> list[RuntimeTensor]:
        """Return the arguments of a kernel as TVM tensors, of which the last one is the output.

        Args:
            values: the config, as knob values by knob name.
        """
        w, kernel = self.workload, kernel_for(self.workload, self.spec)
        shape = kernel.out_shape(w, self.spec)
        arrays = [
            self._pack_tensor(self.data, w.in_channels).reshape(kernel.data_shape(w, self.spec)),
            kernel.pack_weights(self.weights, w, self.spec, values),
        ]
        block = channel_block(w.out_channels, self.spec.lanes)
        for name in epilogue_tensors(w):
            operand = self.added[name]
            if name == QUANTISATION:
                arrays.append(operand)
            elif name in A_CHANNEL:
                arrays.append(operand.reshape(-1, block) if self._blocked else operand)
            else:
                arrays.append(self._pack_tensor(operand, w.out_channels).reshape(shape))
        arrays.append(self.wrong_output())
        return [tvm.runtime.tensor(operand) for operand in arrays]

    def wrong_output(self) -> Array:
        """Return an output tensor, in the kernel's layout, that is filled with wrong values.

        If a kernel leaves values unwritten, they are therefore detected as errors.
        """
        shape = kernel_for(self.workload, self.spec).out_shape(self.workload, self.spec)
        if self.workload.out_dtype == "float32":
            return np.full(shape, np.nan, np.float32)
        correct = np.rint(self.expected).astype(self.workload.out_dtype)
        return ~self._pack_tensor(correct, self.workload.out_channels).reshape(shape)

    def unpack_output(self, packed: Array) -> Array:
        """Convert an output from the kernel's layout to the model's layout.

        Args:
            packed: the output in the kernel's layout.
        """
        if not self._blocked:
            return packed
        blocked_shape = pack_channels(self.expected, packed.shape[-1]).shape
        return unpack_channels(packed.reshape(blocked_shape))

    def error(self, packed: Array) -> float:
        """Return the largest error of an output, as a fraction of the reference's largest value.

        Args:
            packed: the output in the kernel's layout.

        Returns:
            The error; infinite if a float value was not written. For int8, the error is 0 or at
            least 1/128.
        """
        scale = max(float(np.abs(self.expected).max()), 1e-30)
        return float(self.absolute_errors(packed).max()) / scale

    def absolute_errors(self, packed: Array) -> NDArray[np.float64]:
        """Return the absolute error of each value of an output.

        For a quantised workload, an integer is correct if it is at most half a quantisation step
        from the range of correct results.

        Args:
            packed: the output in the kernel's layout.

        Returns:
            The errors in the model's layout, float64; infinite where the output is not finite.
        """
        result = self.unpack_output(packed)
        errors = np.abs(np.subtract(result, self.expected, dtype=np.float64)) - self.spread
        if self.workload.dequantises and self.workload.out_dtype != "float32":
            errors = errors - 0.5
        return np.where(np.isfinite(result), np.maximum(errors, 0.0), np.inf)

    @property
    def _blocked(self) -> bool:
        """True if the kernels store channels in blocks."""
        return self.workload.operator == "conv2d"

    def _pack_tensor(self, tensor: Array, channels: int) -> Array:
        if not self._blocked:
            return tensor
        return pack_channels(tensor, channel_block(channels, self.spec.lanes))


def plain_shapes(w: Workload) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of data, weights and output in the model's layout, without channel blocks.

    Args:
        w: the workload.
    """
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
    """Compute the output of a float32 workload, including its epilogue, with numpy.

    Args:
        w: the workload.
        data: the data, in the first shape of `plain_shapes`.
        weights: the weights, in the second shape of `plain_shapes`.
        bias: shape (out channels,).
        residual: tensor in the shape of the output.

    Returns:
        The output, float32, in the third shape of `plain_shapes`.
    """
    if w.operator == "dense":
        result = data @ weights.T
    elif w.operator == "batch_matmul":
        result = data @ weights
    else:
        result = _convolution(w, data, weights)
        bias = bias[:, None, None]
    for step in w.epilogue:
        if step.kind == "bias":
            result = result + bias
        elif step.kind == "residual":
            result = result + residual
        elif step.kind in FUNCTIONS:
            result = FUNCTIONS[step.kind](result.astype(np.float64))
        else:
            clip = np.maximum if step.kind == "max" else np.minimum
            result = clip(result, np.float32(step.value))
    return np.ascontiguousarray(result, dtype=np.float32)


def _convolution(
    w: Workload, data: NDArray[np.float32], weights: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Compute a convolution: (n, c, h, w) and (o, c / groups, kh, kw) → (n, o, oh, ow)."""
    pads = ((0, 0), (0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right))
    padded = np.pad(data, pads)
    height, width = w.out_height, w.out_width
    group_inputs, group_outputs = w.in_channels // w.groups, w.out_channels // w.groups
    kernels = weights.reshape(w.groups, group_outputs, group_inputs, w.kernel_h, w.kernel_w)
    result = np.zeros((w.batch, w.groups, group_outputs, height * width), np.float32)
    # One matrix product per kernel position: all windows at once need kh × kw times the memory.
    image = np.empty((w.batch, w.in_channels, height, width), np.float32)
    for y, x in np.ndindex(w.kernel_h, w.kernel_w):
        top, left = y * w.dilation_h, x * w.dilation_w
        bottom = top + (height - 1) * w.stride_h + 1
        right = left + (width - 1) * w.stride_w + 1
        image[...] = padded[:, :, top : bottom : w.stride_h, left : right : w.stride_w]
        pixels = image.reshape(w.batch, w.groups, group_inputs, height * width)
        taps = np.ascontiguousarray(kernels[..., y, x])
        result += taps * pixels if group_inputs == 1 else taps @ pixels
    return result.reshape(w.batch, w.out_channels, height, width)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return rng.standard_normal(shape, dtype=np.float32)


# -- int8 --------------------------------------------------------------------------------------


Shape = tuple[int, ...]
INTERESTING = 40.0
"""Intended standard deviation of the values of an int8 output. With this value, the outputs use a
large part of the int8 range, but few of them are clipped."""


def random_integers(
    w: Workload, rng: np.random.Generator, shapes: tuple[Shape, Shape, Shape]
) -> tuple[NDArray[np.int8], NDArray[np.int8], dict[str, Array]]:
    """Draw random int8 data and weights, and operands of the epilogue.

    Data are uniform over int8. Weights are scaled so that most outputs lie in the range of int8
    after the epilogue's shifts. A few weights have an extreme value.

    Args:
        w: the workload.
        rng: random generator.
        shapes: shapes of data, weights and output.

    Returns:
        Data, weights, and operands of the epilogue by name.
    """
    data, weights, out = shapes
    fan_in = w.in_channels // w.groups * w.kernel_h * w.kernel_w
    shift = sum(
        op.shift_range[0] * (-1 if op.kind == "shl" else 1)
        for op in w.epilogue
        if op.kind in ("shr", "shl", "shr_channel")
    )
    # 74 is the standard deviation of the data, which are uniform over the range of int8.
    spread = min(max(INTERESTING * 2.0**shift / (74 * np.sqrt(fan_in)), 1.0), 64.0)
    drawn = np.clip(np.rint(rng.normal(0, spread, weights)), -128, 127).astype(np.int8)
    extreme = rng.random(weights) < 1 / 256
    drawn[extreme] = rng.choice(np.array([-128, 127], np.int8), int(extreme.sum()))
    limit = 1 << min(max(shift + 6, 1), 19)
    bias = rng.integers(-limit, limit, w.out_channels, np.int32)
    if EpilogueOp("bias", 32) in w.epilogue:  # values of all magnitudes
        bias = rng.integers(-(1 << 31), 1 << 31, w.out_channels, np.int32)
        bias >>= rng.integers(0, 32, w.out_channels, np.int32)
    added: dict[str, Array] = {
        "bias": bias,
        "add": rng.integers(-limit, limit, out, np.int32),
        "residual": rng.integers(-128, 128, out, np.int8),
    }
    for op in w.epilogue:
        if op.kind == "shr_channel":
            least, most = op.shift_range
            added["shr_channel"] = rng.integers(least, most + 1, w.out_channels, np.int32)
    return rng.integers(-128, 128, data, np.int8), drawn, added


def integer_reference(
    w: Workload,
    data: NDArray[np.int8],
    weights: NDArray[np.int8],
    added: Mapping[str, Array],
    out: Shape,
) -> NDArray[np.int8]:
    """Compute the reference result of an int8 workload.

    Args:
        w: the workload.
        data: shape (n, c, h, w), (rows, channels) or (batch, rows, depth).
        weights: shape (o, c / groups, kh, kw), (out, in) or (batch, depth, columns).
        added: operands of the epilogue by name.
        out: shape of the output.

    Returns:
        The output that `targets.integer_reference` computes, int8 array of shape `out`.
    """
    if w.operator == "batch_matmul":  # each of its products is a dense layer
        dense = replace(w, operator="dense", batch=w.height, height=1)

        def matrix_operands(matrix: int) -> dict[str, Array]:
            return {n: a if n in A_CHANNEL else a[matrix] for n, a in added.items()}

        outputs = [
            integer_reference(
                dense, data[matrix], weights[matrix].T, matrix_operands(matrix), out[1:]
            )
            for matrix in range(w.batch)
        ]
        return np.stack(outputs)

    def image(tensor: Array) -> Array:
        return tensor.reshape(*tensor.shape, *[1] * (4 - tensor.ndim))

    tensors = {
        name: array if name in A_CHANNEL else image(array)
        for name, array in {"data": data, "weight": weights, **added}.items()
    }
    return computed_reference(w, tensors).astype(np.int8).reshape(out)


# -- integers that stand for reals -------------------------------------------------------------


SPREAD = 1.5
"""Intended standard deviation of the real-valued results. With this value, epilogues that clip at
about 1 clip some of the results."""
TIE = 0.02
"""Distance from a tie, in quantisation steps, within which a real value may be rounded to either of
the two neighbouring integers. Winograd's algorithm computes in float32 with errors of up to a
hundredth of a step."""


@dataclass(frozen=True, eq=False)
class RandomQuantised:
    """Random tensors of a quantised workload, whose integers represent real numbers.

    Attributes:
        data: shape (n, c, h, w) or (rows, channels), in the model's layout.
        weights: int8 weights minus their zero points, shape (o, c / groups, kh, kw) or (out, in).
        data_zero: zero point of the data.
        scales: scale and zero point of each epilogue step that has them.
        tensors: operands of the epilogue by name.
    """

    data: Array
    weights: NDArray[np.int8]
    data_zero: int
    scales: tuple[TensorScale, ...]
    tensors: dict[str, Array]

    @classmethod
    def draw(
        cls, w: Workload, rng: np.random.Generator, shapes: tuple[Shape, Shape, Shape]
    ) -> RandomQuantised:
        """Draw tensors and scales.

        Integers are uniform over their type. With the drawn scales, most results lie within the
        output's range, and some are clipped at either end.

        Args:
            w: the workload.
            rng: random generator.
            shapes: shapes of data, weights and output.
        """
        data, weights, out = shapes

        def draw_tensor(kind: str, shape: Shape) -> Array:
            least, most = LIMITS[kind]
            return rng.integers(least, most + 1, shape).astype(kind)

        def draw_zero_point(kind: str) -> int:
            least, most = LIMITS[kind]
            return int(rng.choice(np.array([least, most, int(rng.integers(least, most + 1)), 0])))

        fan_in = int(np.prod(weights[1:]))
        # 74 is the standard deviation of a uniform distribution over the range of int8.
        scales = SPREAD / (74 * 74 * np.sqrt(fan_in)) * rng.uniform(0.3, 2, w.out_channels)
        steps = [step for step in w.epilogue if step.kind in NUMBERS]
        mean_scales = {
            "add_dequantised": SPREAD / 74,
            "round": SPREAD / 40,
            "quantise": SPREAD / 40,
        }
        step_scales = tuple(
            TensorScale(kind, mean_scales[step.kind] * rng.uniform(0.5, 2), draw_zero_point(kind))
            for step in steps
            if (kind := BYTES[step.value])
        )
        data_zero = draw_zero_point(w.data_dtype)
        added_type = next((BYTES[s.value] for s in steps if s.kind == "add_dequantised"), "int8")
        tensors = {
            QUANTISATION: pack_scales(data_zero, [step.kind for step in steps], step_scales),
            "scale": scales.astype(np.float32),
            "bias": rng.normal(0, SPREAD, w.out_channels).astype(np.float32),
            "added": draw_tensor(added_type, out),
        }
        return cls(
            draw_tensor(w.data_dtype, data),
            draw_tensor("int8", weights),
            data_zero,
            step_scales,
            tensors,
        )

    def expected(self, w: Workload) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the smallest and the largest output value that counts as correct, per element.

        The two values differ where an intermediate rounding is nearly a tie.

        Args:
            w: the workload.

        Returns:
            Two float64 arrays of the output's shape. Values of an integer output are not rounded
            yet.
        """

        def image(tensor: Array) -> Array:
            return tensor.reshape(*tensor.shape, *[1] * (4 - tensor.ndim))

        data = image(self.data).astype(np.int64) - self.data_zero
        scales = iter(self.scales)
        products = sums(w, {"data": data, "weight": image(self.weights).astype(np.int64)})
        bounds = np.stack([products, products]).astype(np.float64)
        for step in w.epilogue:
            tensor_scale = next(scales) if step.kind in NUMBERS else None
            if step.kind == "dequantise":
                bounds = bounds * self.tensors["scale"][:, None, None]
            elif step.kind == "bias":
                bounds = bounds + self.tensors["bias"][:, None, None]
            elif tensor_scale is None:
                clip = np.maximum if step.kind == "max" else np.minimum
                bounds = clip(bounds, float(step.value))
            elif step.kind == "add_dequantised":
                integers = image(self.tensors["added"]).astype(np.float64) - tensor_scale.zero
                bounds = bounds + integers * tensor_scale.scale
            elif step.kind == "round":
                nearly_tied = (
                    bounds / tensor_scale.scale + np.array([-TIE, TIE])[:, None, None, None, None]
                )
                bounds = np.clip(np.rint(nearly_tied), *tensor_scale.bounds()) * tensor_scale.scale
            else:
                bounds = (
                    np.clip(bounds / tensor_scale.scale, *tensor_scale.bounds()) + tensor_scale.zero
                )
        least, most = bounds.reshape(2, *self.tensors["added"].shape)
        return least, most
