"""Reads products of quantised tensors: their integers, and what is done with the results."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of
from tilewright.networks.relax.constants import along_channels, integers_of
from tilewright.networks.relax.op_patterns import (
    ADD,
    CONV2D,
    DEQUANTISE,
    QUANTISE,
    RELU,
    RESHAPES,
    Link,
    Match,
    quantisation,
    upper_bound,
)

BYTES = ("int8", "uint8")


class IntegerWeights(NamedTuple):
    """Weights less their zero points, int16 of shape (o, c / groups, kh, kw) or (out, in), and
    their scales, float64 of shape (o,)."""

    numbers: NDArray[np.int16]
    scale: NDArray[np.float64]


def integer_tensor(flat: FlatGraph, value: Any) -> Any:
    """The variable of the int8 or uint8 tensor that a value is dequantised from, by one scale and
    zero point that are known; of a product of matrices it may have another shape. None for
    anything else."""
    binding = flat.by_var.get(value)
    while binding is not None and binding.op in RESHAPES:
        binding = flat.by_var.get(binding.args[0])
    if binding is None or binding.op != DEQUANTISE or flat.is_constant(binding.args[0]):
        return None
    known = all(getattr(arg, "value", None) is not None for arg in binding.args[1:3])
    if not known or any(arg.value.numpy().size != 1 for arg in binding.args[1:3]):
        return None
    return binding.args[0] if str(binding.args[0].ty.dtype) in BYTES else None


def integer_weights(flat: FlatGraph, anchor: Binding) -> IntegerWeights | None:
    """Of a convolution or a dense layer whose weights are dequantised, by a scale each output
    channel at the most; None for others, and for weights that are further from their zero point
    than an int8 is from 0."""
    value = anchor.args[1]
    found = integers_of(flat, value)
    if found is None or str(found[0].dtype) not in BYTES:
        return None
    integers, binding = found
    scales, zeros = (arg.value.numpy().ravel() for arg in binding.args[1:3])
    axis = 0 if anchor.op == CONV2D else 1
    scale = _of_channels(along_channels(flat, value, scales.astype(np.float64)), axis)
    zero = along_channels(flat, value, zeros.astype(np.float64))
    numbers = integers.astype(np.int16) - zero.astype(np.int16)
    if scale is None or numbers.min() < -128 or numbers.max() > 127:
        return None
    return IntegerWeights(numbers if axis == 0 else numbers.T, scale)


def further_links(flat: FlatGraph, match: Match) -> tuple[Link, ...]:
    """What follows a match that ends with integers and a kernel can do in its epilogue: they are
    dequantised, a tensor of integers that is there before them is added, a clip, and they are
    quantised again; as often as that follows, with one addition at the most."""
    found: list[Link] = []
    links = list(match.chain)
    while links and links[-1].kind == "quantise":
        may_add = all(link.kind != "add" for link in (*match.chain, *found))
        links = _requantised(flat, links[-1].binding, may_add)
        found += links
    return tuple(found)


def _requantised(flat: FlatGraph, written: Binding, may_add: bool) -> list[Link]:
    """From integers to the next ones; empty where that is not what follows."""
    read = flat.sole_user(written.var)
    if read is None or read.op != DEQUANTISE or not _same_scale(written, read):
        return []
    links = [Link(read, 0, "dequantise")]
    user = flat.sole_user(read.var)
    if user is not None and user.op == ADD and may_add:
        position = 0 if user.args[0].same_as(read.var) else 1
        other = user.args[1 - position]
        same = shape_of(other) == read.shape == user.shape
        if not same or not _is_before(flat, integer_tensor(flat, other), written.var):
            return []
        links.append(Link(user, position, "add"))
        user = flat.sole_user(user.var)
    if user is not None and (user.op == RELU or upper_bound(user) is not None):
        links.append(Link(user, 0, "relu" if user.op == RELU else "clip"))
        user = flat.sole_user(user.var)
    if user is None or user.op != QUANTISE or user.args[0] not in (links[-1].binding.var,):
        return []
    return [*links, Link(user, 0, "quantise")] if quantisation(user) is not None else []


def _same_scale(written: Binding, read: Binding) -> bool:
    one, other = quantisation(written), quantisation(read)
    return one is not None and one == other and len(one.scale) == 1


def _is_before(flat: FlatGraph, tensor: Any, var: Any) -> bool:
    """Whether a tensor is there before a variable is bound: of two products that are added, the
    later one adds."""
    if tensor is None:
        return False
    for binding in flat.bindings:
        if binding.var.same_as(var):
            return tensor not in flat.by_var
        if binding.var.same_as(tensor):
            return True
    return False


def _of_channels(values: NDArray[Any], axis: int) -> NDArray[np.float64] | None:
    """One value a channel; None where values differ along another axis."""
    channels = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    same = bool((channels == channels[:, :1]).all())
    return np.array(channels[:, 0], np.float64) if same else None
