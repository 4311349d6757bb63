"""Compute explicit pads of windows with SAME padding.

onnxruntime rejects `auto_pad=SAME_UPPER` together with `dilations`, although it is valid ONNX.
PyTorch exports `padding="same"` in this form.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import helper, shape_inference

from tilewright.networks.onnx.files import without_weights
from tilewright.networks.onnx.graph import Shape, static_shape

WINDOWED = frozenset(("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"))
"""Operators with a sliding window that have the attribute `auto_pad`. Its effect depends on the
size of the input."""
WEIGHTS: Mapping[str, int] = {"QLinearConv": 3}
"""Index of the input with the weights, for operators whose index is not 1."""
SAME = (b"SAME_UPPER", b"SAME_LOWER")
"""Values of `auto_pad` with which a window of stride 1 keeps the size of the image."""


def has_dilated_same(model: onnx.ModelProto) -> bool:
    """Return whether the model has a dilated convolution or pool with SAME padding."""
    return any(map(_is_dilated_same, model.graph.node))


def make_dilated_same_explicit(model: onnx.ModelProto) -> None:
    """Replace `auto_pad` by `pads` for dilated convolutions and pools with SAME padding, in place.

    An operator that also has a stride is not changed if the size of its input is unknown.
    """
    infos: Collection[onnx.ValueInfoProto] = ()
    if any(map(_needs_size, model.graph.node)):
        inferred = shape_inference.infer_shapes(without_weights(model)).graph
        infos = (*inferred.value_info, *inferred.input)
    shapes = {info.name: shape for info in infos if (shape := static_shape(info)) is not None}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        kernel = kernel_shape(node, shapes) if _is_dilated_same(node) else None
        if kernel is None or (_needs_size(node) and node.input[0] not in shapes):
            continue
        image = shapes[node.input[0]][2:] if _needs_size(node) else (0,) * len(kernel)
        replace_attribute(node, "pads", same_pads(node, kernel, image))
        replace_attribute(node, "auto_pad", None)


def same_pads(node: onnx.NodeProto, kernel: Sequence[int], image: Sequence[int]) -> list[int]:
    """Return the explicit pads that correspond to an operator's `auto_pad`.

    If the total padding is odd, SAME_UPPER puts the additional element at the end, as the ONNX
    operator Conv defines.

    Args:
        node: the convolution or pool.
        kernel: sizes of the window.
        image: sizes of the input's spatial dimensions.

    Returns:
        Pads at the beginning of each dimension, followed by pads at the end of each.
    """
    mode = _automatic(node)
    ones = [1] * len(kernel)
    attributes = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    begins, ends = [], []
    for size, taps, stride, dilation in zip(image, kernel, strides, dilations, strict=True):
        reach = dilation * (taps - 1) + 1
        total = max((math.ceil(size / stride) - 1) * stride + reach - size, 0)
        total = total if mode in SAME else 0
        begins.append(total // 2 if mode == b"SAME_UPPER" else total - total // 2)
        ends.append(total - begins[-1])
    return begins + ends


def kernel_shape(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> list[int] | None:
    """Return the sizes of the window of a convolution or pool.

    They are taken from the attribute `kernel_shape` or else from the shape of the weights.

    Args:
        node: the operator.
        shapes: known shapes by tensor name.

    Returns:
        The sizes, or None if they are unknown.
    """
    for attribute in node.attribute:
        if attribute.name == "kernel_shape":
            return list(attribute.ints)
    index = WEIGHTS.get(node.op_type, 1)
    weight = node.input[index] if index < len(node.input) else ""
    return list(shapes[weight][2:]) if weight in shapes else None


def replace_attribute(node: onnx.NodeProto, name: str, value: list[int] | None) -> None:
    """Replace an attribute of an operator by a list of integers.

    Args:
        node: the operator, which is changed in place.
        name: name of the attribute.
        value: the integers, or None to remove the attribute.
    """
    for attribute in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(attribute)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))


def _automatic(node: onnx.NodeProto) -> bytes:
    return next((bytes(a.s) for a in node.attribute if a.name == "auto_pad"), b"NOTSET")


def _is_dilated_same(node: onnx.NodeProto) -> bool:
    dilated = any(a.name == "dilations" and set(a.ints) != {1} for a in node.attribute)
    return node.op_type in WINDOWED and dilated and _automatic(node) in SAME


def _needs_size(node: onnx.NodeProto) -> bool:
    """Return whether an operator's SAME padding depends on the size of its input.

    This is the case for a dilated convolution or pool with a stride above 1.
    """
    strided = any(a.name == "strides" and set(a.ints) != {1} for a in node.attribute)
    return strided and _is_dilated_same(node)
