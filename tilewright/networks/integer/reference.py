"""Reference implementation of accelerator layers in plain integer arithmetic.

All other implementations of a layer must give bit-identical results.
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
    """Compute the int8 output of a layer.

    Args:
        layer: the layer.
        values: arrays by value name, which include the layer's inputs.
        block: number of channels per block of a packed image.

    Returns:
        int8 array of shape (n, o, oh, ow), or (rows, channels) if the layer reads rows × channels.

    Raises:
        OverflowError: an accumulator overflows. `requantisation.check_sums` excludes such layers.
    """
    data = values[layer.data]
    tensors: dict[str, Array] = {"data": layer_data(layer, data, block)}
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
    """Compute the int32 accumulators of a layer with constant weights, before its epilogue.

    Args:
        layer: the layer.
        values: arrays by value name, which include the layer's data.
        block: number of channels per block of a packed image.

    Returns:
        int32 array of shape (n, o, oh, ow).
    """
    assert layer.weight is not None
    tensors: dict[str, Array] = {
        "data": layer_data(layer, values[layer.data], block), "weight": layer.weight
    }  # fmt: skip
    return reference(layer.workload.with_steps(()), tensors, out_bits=32)


def of_shortcut(
    layer: Layer, shortcut: LayerShortcut, values: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the tensors of a layer's projection shortcut, named as `integer_reference` expects.

    Args:
        layer: the layer.
        shortcut: the 1×1 convolution whose result is added to the layer's accumulators.
        values: arrays by value name.

    Returns:
        The data (n, c, h, w), the weights (o, c, 1, 1), and the bias and shifts (o,) if the
        shortcut has them, under the names `shortcut_data` and so on.
    """
    workload = layer.workload.of_shortcut
    assert workload is not None
    shape = (workload.batch, workload.in_channels, workload.height, workload.width)
    tensors = {"data": _as_image(values[shortcut.data], shape), "weight": shortcut.weight}
    shortcut_tensors = {"bias": shortcut.bias, "shr_channel": shortcut.shifts}
    tensors |= {name: array for name, array in shortcut_tensors.items() if array is not None}
    return {f"shortcut_{name}": array for name, array in tensors.items()}


def layer_data(layer: Layer, data: Array, block: int) -> Array:
    """Convert the value that a layer reads to the shape (n, c, h, w) of its workload.

    Args:
        layer: the layer.
        data: the value, in any shape that the layer accepts (see `IntegerGraph`).
        block: number of channels per block of a packed image.
    """
    w = layer.workload
    if layer.unfold is not None:
        return layer.unfold.data(data)
    shape = (w.batch, w.in_channels, w.height, w.width)
    if data.shape == shape:
        return data
    if w.operator == "dense" and data.ndim == 4:
        return _flatten_packed(data, w.in_channels, block)
    return _as_image(data, shape)


def results_shape(layer: Layer) -> tuple[int, int, int, int]:
    """Return the shape (n, o, oh, ow) of the accumulators to which a layer's epilogue applies."""
    w = layer.workload
    return w.batch, w.out_channels, w.results_height, w.results_width


def is_image(layer: Layer, data: Array) -> bool:
    """Return whether a layer reads `data` as an image and therefore writes an image."""
    return is_image_of(layer, data.shape)


def is_image_of(layer: Layer, shape: tuple[int, ...]) -> bool:
    """Return whether a layer reads data of this shape as an image instead of rows × channels."""
    w = layer.workload
    return w.operator != "dense" and (
        layer.unfold is not None or shape == (w.batch, w.in_channels, w.height, w.width)
    )


def _as_image(values: Array, shape: tuple[int, int, int, int]) -> Array:
    """Convert rows × channels to an image, padding missing rows with zeros.

    If w is 1, row `pixel · n + b` becomes pixel (b, :, pixel, 0).

    Args:
        values: array of shape (rows, channels).
        shape: shape (n, c, h, w) of the image.
    """
    if values.shape == shape:
        return values
    n, c, h, w = shape
    rows = values.reshape(-1, c)
    whole = np.zeros((h * w * n, c), values.dtype)
    whole[: len(rows)] = rows
    return whole.reshape(h, w, n, c).transpose(2, 3, 0, 1)


def _flatten_packed(image: Array, channels: int, block: int) -> Array:
    """Flatten an image in the order in which it is packed in blocks of channels.

    Args:
        image: array of shape (1, c, h, w).
        channels: length of the result, which includes the channels that pad the last block. They
            are filled with zeros.
        block: number of channels per block.

    Returns:
        Array of shape (1, channels, 1, 1).
    """
    _, c, h, w = image.shape
    if h * w == 1:
        return image.reshape(1, -1, 1, 1)
    whole = np.zeros((channels // (h * w), h * w), image.dtype)
    whole[:c] = image.reshape(c, h * w)
    return whole.reshape(-1, block, h * w).transpose(0, 2, 1).reshape(1, -1, 1, 1)
