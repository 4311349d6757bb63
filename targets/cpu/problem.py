"""Seeded tensors of a workload in the layouts of its kernels, and the right answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from targets.base import Configs, Space
from targets.cpu.kernels.kernel import Values
from targets.cpu.kernels.known import kernel_for
from targets.cpu.layouts import channel_block, pack_channels, unpack_channels
from targets.cpu.spec import CpuSpec
from targets.workload import Workload


class Tensors:
    """Of one workload; made once and shared by all its configs."""

    def __init__(self, workload: Workload, spec: CpuSpec, space: Space) -> None:
        w = workload
        rng = np.random.default_rng(0)
        self.workload, self.spec, self.space = workload, spec, space
        self.data = _normal(rng, (w.batch, w.in_channels, w.height, w.width))
        fan_in = w.in_channels // w.groups * w.kernel_h * w.kernel_w
        self.weights = _normal(
            rng, (w.out_channels, w.in_channels // w.groups, w.kernel_h, w.kernel_w)
        ) / np.float32(np.sqrt(fan_in))
        self.bias = _normal(rng, (w.out_channels,))
        self.residual = _normal(rng, (w.batch, w.out_channels, w.out_height, w.out_width))
        self.expected = reference(w, self.data, self.weights, self.bias, self.residual)

    def values_of(self, configs: Configs) -> list[dict[str, int]]:
        """Knob values by name, a row a config of shape (n, knobs)."""
        return [self.space.describe(config) for config in configs]

    def arguments(self, values: Values) -> list[Any]:
        """TVM's tensors for a kernel of that config; the last is the output."""
        import tvm

        w, kernel = self.workload, kernel_for(self.workload)
        ib = channel_block(w.in_channels, self.spec.lanes)
        ob = channel_block(w.out_channels, self.spec.lanes)
        shape = kernel.out_shape(w, self.spec)
        arrays = [
            pack_channels(self.data, ib).reshape(kernel.data_shape(w, self.spec)),
            kernel.pack_weights(self.weights, w, self.spec, values),
        ]
        if any(step.kind == "bias" for step in w.epilogue):
            arrays.append(self.bias.reshape(-1, ob))
        if any(step.kind == "residual" for step in w.epilogue):
            arrays.append(pack_channels(self.residual, ob).reshape(shape))
        arrays.append(np.zeros(shape, np.float32))
        return [tvm.runtime.tensor(array) for array in arrays]

    def error(self, packed: NDArray[np.float32]) -> float:
        """Largest difference from the reference, on the scale of its largest value."""
        result = unpack_channels(packed.reshape(pack_channels(self.expected, packed.shape[-1]).shape))
        return float(np.abs(result - self.expected).max() / np.abs(self.expected).max())


def reference(
    w: Workload,
    data: NDArray[np.float32],
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
    residual: NDArray[np.float32],
) -> NDArray[np.float32]:
    """The convolution in NCHW by numpy, with its epilogue."""
    pads = ((0, 0), (0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right))
    padded = np.pad(data, pads)
    reach_h = w.dilation_h * (w.kernel_h - 1) + 1
    reach_w = w.dilation_w * (w.kernel_w - 1) + 1
    windows = sliding_window_view(padded, (reach_h, reach_w), (2, 3))
    windows = windows[
        :, :, :: w.stride_h, :: w.stride_w, :: w.dilation_h, :: w.dilation_w
    ]  # (n, c, oh, ow, kh, kw)
    groups = []
    each_in, each_out = w.in_channels // w.groups, w.out_channels // w.groups
    for g in range(w.groups):
        part = windows[:, g * each_in : (g + 1) * each_in]
        kernel = weights[g * each_out : (g + 1) * each_out]
        groups.append(np.tensordot(part, kernel, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2))
    found = np.concatenate(groups, axis=1)
    for step in w.epilogue:
        if step.kind == "bias":
            found = found + bias[:, None, None]
        elif step.kind == "residual":
            found = found + residual
        else:
            clip = np.maximum if step.kind == "max" else np.minimum
            found = clip(found, np.float32(step.value))
    return np.ascontiguousarray(found, dtype=np.float32)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return rng.standard_normal(shape, dtype=np.float32)
