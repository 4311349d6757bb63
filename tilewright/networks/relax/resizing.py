"""Convert the forms of Resize that TVM's importer computes incorrectly, axis by axis.

Except for cropping, every form is a weighted sum of a few neighbours along each axis, with weights
that are known at import. Coordinates are computed in float32 as in onnxruntime, because rounding
decides which of two neighbours at equal distance is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tilewright.core.tvm_types import Array, BlockBuilder, OnnxAttributes, RelaxExpr
from tilewright.networks.relax.bindings import shape_of

LINEAR_BY_TVM = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Coordinate transformation modes of ONNX's Resize for which the linear resizing of images is left
to TVM and to the kernels of `networks.compiled.image_operators`."""


@dataclass(frozen=True)
class Neighbours:
    """The input elements from which each output element along an axis is computed.

    Attributes:
        places: indices in the input, int64 array of shape (output length, neighbours).
        weights: weights of the neighbours, float array of shape (output length, neighbours). A
            single neighbour has the weight 1.
    """

    places: Array
    weights: Array


@dataclass(frozen=True)
class _ResizedAxis:
    """An axis of a resized tensor.

    Attributes:
        before: length of the axis in the input.
        behind: length of the axis in the output.
        scale: factor from input to output coordinates. It may differ from the ratio of the lengths
            because lengths are rounded.
    """

    before: int
    behind: int
    scale: np.float32


def resize(
    bb: BlockBuilder, inputs: Sequence[RelaxExpr], attrs: OnnxAttributes
) -> RelaxExpr | None:
    """Convert an ONNX Resize of opset 11 or later.

    Args:
        bb: block builder of the importer.
        inputs: inputs of the operator.
        attrs: attributes of the operator.

    Returns:
        The result. None if TVM's converter is to be used: for older opsets, for scales or sizes
        that are not constant, and for forms that TVM computes correctly.

    Raises:
        ValueError: the form is not supported.
    """
    if len(inputs) < 3:
        return None
    data, scales = inputs[0], inputs[2]
    sizes = inputs[3] if len(inputs) > 3 else None
    given = [value for value in (scales, sizes) if value is not None and _is_filled(value)]
    shape = shape_of(data)
    if not given or not isinstance(given[0], GenericConst) or shape is None:
        return None
    taps = plan_resize(shape, attrs, given[0].value.numpy(), by_size=given[0] is sizes)
    if taps is None:
        return None
    made = data
    for place, tap in taps.items():
        made = bb.emit(_sum_along(bb, made, place, len(shape), tap, str(data.ty.dtype)))
    return made


def plan_resize(
    shape: Sequence[int], attrs: OnnxAttributes, given: Array, *, by_size: bool
) -> dict[int, Neighbours] | None:
    """Return the neighbours along each axis that changes.

    Args:
        shape: shape of the input.
        attrs: attributes of the operator.
        given: scales or sizes of the axes.
        by_size: whether `given` contains sizes instead of scales.

    Returns:
        The neighbours by index of the axis, or None if TVM's converter computes this form
        correctly.

    Raises:
        ValueError: the form is not supported.
    """
    mode = _text(attrs, "mode", "nearest")
    coordinates = _text(attrs, "coordinate_transformation_mode", "half_pixel")
    axes = _axes(shape, given, attrs, by_size=by_size)
    if coordinates == "tf_crop_and_resize":
        raise ValueError("cropping the input (coordinate mode tf_crop_and_resize) is not supported")
    if attrs.get("antialias", 0) and any(axis.behind < axis.before for axis in axes.values()):
        raise ValueError("antialias is not supported")
    if mode == "linear" and coordinates in LINEAR_BY_TVM and _is_exact(shape, axes):
        return None
    return {
        place: taps_of(axis, mode, coordinates, attrs)
        for place, axis in axes.items()
        if axis.before != axis.behind or axis.scale != 1
    }


def _axes(
    shape: Sequence[int], given: Array, attrs: OnnxAttributes, *, by_size: bool
) -> dict[int, _ResizedAxis]:
    places = [int(axis) % len(shape) for axis in attrs.get("axes", range(len(shape)))]
    before = [shape[place] for place in places]
    if not by_size:
        results = [
            _ResizedAxis(size, int(np.floor(np.float32(size) * scale)), scale)
            for size, scale in zip(before, given.astype(np.float32), strict=True)
        ]
    else:
        policy = _text(attrs, "keep_aspect_ratio_policy", "stretch")
        behind = [int(size) for size in given]
        factors = [new / old for new, old in zip(behind, before, strict=True)]
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            behind = [int(np.floor(factor * size + 0.5)) for size in before]
            factors = [factor] * len(before)
        results = [
            _ResizedAxis(old, new, np.float32(factor))
            for old, new, factor in zip(before, behind, factors, strict=True)
        ]
    return dict(zip(places, results, strict=True))


def taps_of(axis: _ResizedAxis, mode: str, coordinates: str, attrs: OnnxAttributes) -> Neighbours:
    """Return the neighbours and weights of each output element along an axis.

    Args:
        axis: the axis.
        mode: "nearest", "linear" or "cubic".
        coordinates: ONNX's coordinate transformation mode.
        attrs: attributes of the operator.
    """
    at = _coordinates(axis, coordinates)
    last = axis.before - 1
    if mode == "nearest":
        rule = _text(attrs, "nearest_mode", "round_prefer_floor")
        places = _ROUNDED[rule](at)
        return Neighbours(np.clip(places, 0, last).astype(np.int64)[:, None], np.ones((len(at), 1)))
    if mode == "linear":
        at = np.clip(at, 0, last)
        first = np.floor(at)
        share = at - first
        places = np.stack([first, np.minimum(first + 1, last)], axis=1)
        return Neighbours(places.astype(np.int64), np.stack([1 - share, share], axis=1))
    first = np.floor(at)
    places = first[:, None] + np.arange(-1, 3)
    weights = _cubic(at - first, np.float32(attrs.get("cubic_coeff_a", -0.75)))
    if attrs.get("exclude_outside", 0):
        weights = np.where((places >= 0) & (places <= last), weights, 0)
        weights = weights / weights.sum(axis=1, keepdims=True)
    return Neighbours(np.clip(places, 0, last).astype(np.int64), weights)


_ROUNDED: Mapping[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - np.float32(0.5)),
    "round_prefer_ceil": lambda at: np.floor(at + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _coordinates(axis: _ResizedAxis, mode: str) -> Array:
    """Return the input coordinate of each output element, float32 array of shape (length,).

    Args:
        axis: the resized axis.
        mode: ONNX's coordinate transformation mode.
    """
    index, half = np.arange(axis.behind, dtype=np.float32), np.float32(0.5)
    if mode == "asymmetric":
        return index / axis.scale
    if mode == "tf_half_pixel_for_nn":
        return (index + half) / axis.scale
    if mode == "align_corners":
        steps = np.float32(axis.behind - 1)
        return index * np.float32(axis.before - 1) / steps if steps else index
    if mode == "pytorch_half_pixel" and axis.behind == 1:
        return np.zeros(1, np.float32)
    at = (index + half) / axis.scale
    if mode == "half_pixel_symmetric":
        exact = axis.scale * np.float32(axis.before)
        offset = np.float32(axis.before / 2) * (np.float32(1) - np.float32(axis.behind) / exact)
        at = offset + at
    return at - half


def _cubic(share: Array, a: np.float32) -> Array:
    """Return the weights of the four neighbours in cubic interpolation.

    The weights are given by the convolution kernel of R. Keys, "Cubic Convolution Interpolation for
    Digital Image Processing" (1981).

    Args:
        share: fractional part of each coordinate, of shape (output length,).
        a: parameter of the kernel.

    Returns:
        Float array of shape (output length, 4).
    """
    distance = np.abs(np.stack([share + 1, share, 1 - share, 2 - share], axis=1))
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    weights: Array = np.where(distance <= 1, near, far)
    return weights


def _sum_along(
    bb: BlockBuilder, data: RelaxExpr, place: int, rank: int, taps: Neighbours, dtype: str
) -> RelaxExpr:
    """Return the weighted sum of the neighbours along one axis, as an expression.

    Args:
        bb: block builder of the importer.
        data: the tensor to resize.
        place: index of the axis.
        rank: number of dimensions of the tensor.
        taps: the neighbours of each output element.
        dtype: element type of the tensor.
    """
    parts = []
    for places, weights in zip(taps.places.T, taps.weights.T, strict=True):
        part = relax.op.take(data, relax.const(places, "int64"), place, mode="clip")
        if taps.places.shape[1] > 1:
            factor = weights.reshape([-1 if axis == place else 1 for axis in range(rank)])
            part = relax.op.multiply(bb.emit(part), relax.const(factor.astype(dtype), dtype))
        parts.append(bb.emit(part))
    whole = parts[0]
    for part in parts[1:]:
        whole = bb.emit(relax.op.add(whole, part))
    return whole


def _is_exact(shape: Sequence[int], axes: dict[int, _ResizedAxis]) -> bool:
    """Return whether TVM's linear resize, which only knows sizes, is correct for these scales.

    This is the case for images (n, c, h, w) of which only the rows and columns are resized, by the
    exact factors between their sizes.
    """
    changed = {place: axis for place, axis in axes.items() if axis.before != axis.behind}
    exact = all(
        np.isclose(axis.behind, axis.before * np.float64(axis.scale), rtol=1e-6)
        for axis in axes.values()
    )
    return len(shape) == 4 and set(changed) <= {2, 3} and exact


def _is_filled(value: RelaxExpr) -> bool:
    """Return whether the scales or sizes of a Resize are given.

    An empty tensor means that they are not.
    """
    return shape_of(value) != (0,)


def _text(attrs: OnnxAttributes, name: str, otherwise: str) -> str:
    value = attrs.get(name, otherwise)
    return value.decode() if isinstance(value, bytes) else str(value)
