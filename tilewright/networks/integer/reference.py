"""Computes a layer in plain integer arithmetic.

Every other way of running it must give the same, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.integer_reference import reference
from tilewright.targets.layer import Layer, LayerShortcut

Array = NDArray[Any]


def layer_reference(layer: Layer, values: Mapping[str, Array], block: int) -> Array:
    """The int8 output of one layer: (n, o, oh, ow), or rows × channels where it reads those. Of
    a packed image `block` channels lie together. Raises `OverflowError` where its sums wrap, which
    `check_sums` leaves no layer."""
    data = values[layer.data]
    tensors: dict[str, Array] = {"data": packed(layer, data, block)}
    if layer.weight is not None:
        tensors["weight"] = layer.weight
    elif layer.weight_from is not None:
        weight = values[layer.weight_from]
        tensors["weight"] = weight.reshape(-1, weight.shape[-1])[:, :, None, None]
    if layer.bias is not None:
        tensors["bias"] = layer.bias
    if layer.shifts is not None:
        tensors["shr_channel"] = layer.shifts
    if layer.add is not None:
        tensors["add"] = layer.add
    if layer.residual is not None:
        tensors["residual"] = _as_image(values[layer.residual], results_shape(layer))
    if layer.shortcut is not None:
        tensors |= of_shortcut(layer, layer.shortcut, values)
    out = reference(layer.workload, tensors, exact=True).astype(np.int8)
    if is_image(layer, data):
        return out
    rows = math.prod(data.shape[:-1]) if layer.workload.operator == "conv2d" else len(out)
    return out.transpose(2, 3, 0, 1).reshape(-1, out.shape[1])[:rows]


def sums_of(layer: Layer, values: Mapping[str, Array], block: int) -> Array:
    """The sums of products of a layer with constant weights, before its epilogue, (n, o, oh, ow).
    Of a packed image `block` channels lie together."""
    assert layer.weight is not None
    tensors: dict[str, Array] = {
        "data": packed(layer, values[layer.data], block), "weight": layer.weight
    }  # fmt: skip
    return reference(layer.workload.with_steps(()), tensors, out_bits=32)


def of_shortcut(
    layer: Layer, shortcut: LayerShortcut, values: Mapping[str, Array]
) -> dict[str, Array]:
    """What a layer's shortcut works on, as `targets.reference` names it: data (n, c, h, w), weight
    (o, c, 1, 1), bias and shifts (o,)."""
    own = layer.workload.of_shortcut
    assert own is not None
    shape = (own.batch, own.in_channels, own.height, own.width)
    tensors = {"data": _as_image(values[shortcut.data], shape), "weight": shortcut.weight}
    given = {"bias": shortcut.bias, "shr_channel": shortcut.shifts}
    tensors |= {name: array for name, array in given.items() if array is not None}
    return {f"shortcut_{name}": array for name, array in tensors.items()}


def packed(layer: Layer, data: Array, block: int) -> Array:
    """The data (n, c, h, w) of a layer's workload out of the value it reads; `block` channels lie
    together."""
    w = layer.workload
    if layer.unfold is not None:
        return layer.unfold.data(data)
    shape = (w.batch, w.in_channels, w.height, w.width)
    if data.shape == shape:
        return data
    if w.operator == "dense" and data.ndim == 4:
        return _flattened(data, w.in_channels, block)
    return _as_image(data, shape)


def results_shape(layer: Layer) -> tuple[int, int, int, int]:
    """(n, o, oh, ow) of what the epilogue of a layer's workload works on."""
    w = layer.workload
    return w.batch, w.out_channels, w.results_height, w.results_width


def is_image(layer: Layer, data: Array) -> bool:
    """Whether a layer reads `data` of any shape as an image, and writes one."""
    return is_image_of(layer, data.shape)


def is_image_of(layer: Layer, shape: tuple[int, ...]) -> bool:
    """The same of data of that shape."""
    w = layer.workload
    return w.operator != "dense" and (
        layer.unfold is not None or shape == (w.batch, w.in_channels, w.height, w.width)
    )


def _as_image(values: Array, shape: tuple[int, int, int, int]) -> Array:
    """Rows × channels as an image: row pixel · n + b is pixel (b, :, pixel, 0)."""
    if values.shape == shape:
        return values
    n, c, h, w = shape
    rows = values.reshape(-1, c)
    whole = np.zeros((h * w * n, c), values.dtype)
    whole[: len(rows)] = rows
    return whole.reshape(h, w, n, c).transpose(2, 3, 0, 1)


def _flattened(image: Array, channels: int, block: int) -> Array:
    """(1, c, h, w) as it lies packed in blocks of channels: (1, channels, 1, 1)."""
    _, c, h, w = image.shape
    if h * w == 1:
        return image.reshape(1, -1, 1, 1)
    whole = np.zeros((channels // (h * w), h * w), image.dtype)
    whole[:c] = image.reshape(c, h * w)
    return whole.reshape(-1, block, h * w).transpose(0, 2, 1).reshape(1, -1, 1, 1)
