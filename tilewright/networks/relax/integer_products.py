"""Find the integers behind products of quantised tensors, and the operations on their results.

In a QDQ model, a convolution or dense layer reads dequantised int8 or uint8 tensors. A kernel can
read these integers directly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.core.tvm_types import Array, RelaxExpr, RelaxVar
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
_MIDDLE = {"int8": 0, "uint8": 128}
_MOVES = ("relax.permute_dims", "relax.reshape", "relax.expand_dims", "relax.squeeze")


class IntegerWeights(NamedTuple):
    """Quantised weights of a convolution or dense layer.

    Attributes:
        numbers: weights minus their zero points, int16 array of shape (o, c / groups, kh, kw) or
            (out, in).
        scale: scale of each output channel, float64 array of shape (o,).
    """

    numbers: NDArray[np.int16]
    scale: NDArray[np.float64]


def dequantisation(flat: FlatGraph, value: RelaxExpr) -> Binding | None:
    """Return the binding that dequantises a value from an int8 or uint8 activation.

    Args:
        flat: the graph.
        value: the value, which may be reshaped after the dequantisation.

    Returns:
        The binding. None if the value is not dequantised, if the integers are constant, or if they
        have several scales or zero points.
    """
    binding = flat.by_var.get(value)
    while binding is not None and binding.op in RESHAPES:
        binding = flat.by_var.get(binding.args[0])
    if binding is None or binding.op != DEQUANTISE or flat.is_constant(binding.args[0]):
        return None
    if any(shape_of(arg) not in ((), (1,)) for arg in binding.args[1:3]):
        return None
    return binding if str(binding.args[0].ty.dtype) in BYTES else None


def integer_tensor(flat: FlatGraph, value: RelaxExpr) -> RelaxVar | None:
    """Return the integer tensor from which a value is dequantised.

    Args:
        flat: the graph.
        value: the value, which may be reshaped after the dequantisation.

    Returns:
        Variable of the int8 or uint8 tensor. None if there is no such tensor (see
        `dequantisation`), or if its scale or zero point is only known at run time.
    """
    binding = dequantisation(flat, value)
    return binding.args[0] if binding is not None and is_known(binding) else None


def is_known(dequantised: Binding) -> bool:
    """Return whether the scale and the zero point of a dequantisation are constants.

    Args:
        dequantised: binding of the dequantisation.
    """
    return all(getattr(arg, "value", None) is not None for arg in dequantised.args[1:3])


def weight_scale(flat: FlatGraph, anchor: Binding) -> NDArray[np.float64] | None:
    """Return the weight scales of a layer whose weights are quantised symmetrically.

    The quantised weights must be constant, as int8 with zero point 0 or uint8 with zero point 128,
    and have at most one scale per output channel. They may be a parameter of the function, whose
    numbers are not known here. The scales and zero points must be constants with known numbers.

    Args:
        flat: the graph.
        anchor: the convolution or matrix product.

    Returns:
        float64 array of shape (o,), or None for other layers.
    """
    value = anchor.args[1]
    binding = flat.by_var.get(value)
    while binding is not None and binding.op in _MOVES:
        binding = flat.by_var.get(binding.args[0])
    if binding is None or binding.op != DEQUANTISE or not flat.is_constant(binding.args[0]):
        return None
    dtype = str(binding.args[0].ty.dtype)
    if dtype not in _MIDDLE or any(not hasattr(arg, "value") for arg in binding.args[1:3]):
        return None
    scales, zeros = (arg.value.numpy().ravel() for arg in binding.args[1:3])
    if (zeros != _MIDDLE[dtype]).any():
        return None
    along = along_channels(flat, value, scales.astype(np.float64))
    return _of_channels(along, 0 if anchor.op == CONV2D else 1)


def integer_weights(flat: FlatGraph, anchor: Binding) -> IntegerWeights | None:
    """Return the integer weights of a layer.

    Args:
        flat: the graph.
        anchor: the convolution or matrix product.

    Returns:
        The weights. None if `weight_scale` returns None, or if the numbers of the weights are not
        known.
    """
    integers, scale = integers_of(flat, anchor.args[1]), weight_scale(flat, anchor)
    if integers is None or scale is None:
        return None
    numbers = integers[0].astype(np.int16) - _MIDDLE[str(integers[0].dtype)]
    return IntegerWeights(numbers if anchor.op == CONV2D else numbers.T, scale)


def further_links(flat: FlatGraph, match: Match) -> tuple[Link, ...]:
    """Return the operations after a match that a kernel can also compute in its epilogue.

    The match must end with a quantisation. The further operations dequantise these integers,
    optionally add an integer tensor that was computed earlier, optionally clip, and quantise again.
    This sequence may occur several times, but with at most one addition in total.

    Args:
        flat: the graph.
        match: the match.
    """
    further_links: list[Link] = []
    links = list(match.chain)
    while links and links[-1].kind == "quantise":
        may_add = all(link.kind != "add" for link in (*match.chain, *further_links))
        links = _requantising_links(flat, links[-1].binding, may_add)
        further_links += links
    return tuple(further_links)


def _requantising_links(flat: FlatGraph, written: Binding, may_add: bool) -> list[Link]:
    """Return the operations that requantise integers: dequantise, add, clip and quantise.

    Args:
        flat: the graph.
        written: the quantisation that writes the integers.
        may_add: whether an addition is allowed.

    Returns:
        The operations in order. The sequence is empty if other operations read the integers.
    """
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


def _is_before(flat: FlatGraph, tensor: RelaxVar | None, var: RelaxVar) -> bool:
    """Return whether an integer tensor is computed before a variable, or is a network input.

    If the results of two products are added, only the later product can compute the addition.

    Args:
        flat: the graph.
        tensor: the integer tensor, or None, for which the result is False.
        var: the variable.
    """
    if tensor is None:
        return False
    for binding in flat.bindings:
        if binding.var.same_as(var):
            return tensor not in flat.by_var
        if binding.var.same_as(tensor):
            return True
    return False


def _of_channels(values: Array, axis: int) -> NDArray[np.float64] | None:
    """Return the value of each channel, if the values of a tensor differ only between channels.

    Args:
        values: values with the shape of the weights.
        axis: index of the channel axis.

    Returns:
        float64 array of shape (channels,), or None if the values differ along another axis.
    """
    channels = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    same = bool((channels == channels[:, :1]).all())
    return np.array(channels[:, 0], np.float64) if same else None
