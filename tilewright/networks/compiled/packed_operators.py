"""Implement operators between kernels directly on packed tensors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tilewright.core.tvm_types import Array, RelaxConstant, RelaxExpr, RelaxVar
from tilewright.networks.compiled.image_operators import MODES, MOST_PIXELS, PoolWindow, is_vector
from tilewright.networks.compiled.packed_tensors import FLOAT_BLOCK, PackedTensors
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of
from tilewright.networks.relax.constants import value_of
from tilewright.networks.relax.op_patterns import (
    ADAPTIVE_POOL,
    ADD,
    AVERAGE_POOL,
    CLIP,
    DEQUANTISE,
    MAX_POOL,
    MEAN,
    QUANTISE,
    RELU,
)

EACH = frozenset((
    RELU, CLIP, "relax.sigmoid", "relax.tanh", "relax.exp", "relax.erf", "relax.sqrt", "relax.abs",
    "relax.negative", "relax.nn.silu", "relax.nn.gelu", "relax.nn.leakyrelu",
))  # fmt: skip
"""Elementwise operators with one tensor operand."""
QUANTISING = frozenset((QUANTISE, DEQUANTISE))
"""Operators that quantise or dequantise a tensor."""
PAIRS = frozenset((
    ADD, "relax.subtract", "relax.multiply", "relax.divide", "relax.maximum", "relax.minimum",
))  # fmt: skip
"""Elementwise operators with two tensor operands."""
POOLS = frozenset((MAX_POOL, AVERAGE_POOL))
"""Pooling operators."""
CONCAT, GATHER, WHERE, RESHAPE = "relax.concat", "relax.take", "relax.where", "relax.reshape"
RESIZE = "relax.image.resize2d"
REDUCTIONS = MappingProxyType({
    MEAN: relax.op.mean, "relax.max": relax.op.max, "relax.min": relax.op.min,
    "relax.sum": relax.op.sum,
})  # fmt: skip
"""Functions that create a reduction in Relax, by the name of the operator."""
SPATIAL = (2, 3)
"""Indices of the spatial axes of an image of shape (n, c, h, w)."""


def packed_result(
    tensors: PackedTensors,
    binding: Binding,
    by_var: Mapping[RelaxVar, Binding],
    *,
    bfloat16: bool = False,
    wide: bool = False,
) -> tuple[RelaxExpr, int] | None:
    """Compute an operator's result on packed tensors, (n, c / block, h, w, block).

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        binding: the operator, whose result has the shape (n, c, h, w).
        by_var: the operators of the network, by variable of the result.
        bfloat16: let a pool store its result in bfloat16.
        wide: keep the block size of the input even if it exceeds `FLOAT_BLOCK`, because the result
            will be stored in bfloat16.

    Returns:
        The expression and its block size. None if none of the inputs is packed, or if there is no
        implementation of the operator on packed tensors.
    """
    if binding.shape is None or len(binding.shape) != 4:
        return None
    read = [arg for arg in binding.args if isinstance(arg, relax.Var)]
    block = _block(next((b for arg in read if (b := tensors.block_of(arg))), 0), wide)
    if not block:
        return None
    if binding.op in EACH or (binding.op in QUANTISING and _is_by_tensor(binding)):
        first, *rest = binding.args
        result = relax.Call(
            binding.value.op, [tensors.as_packed(first, block), *rest], binding.value.attrs
        )
        return result, block
    if binding.op in PAIRS:
        return _pair(tensors, binding, block)
    if binding.op == WHERE:
        return _choice(tensors, binding, block, by_var.get(binding.args[1]))
    if binding.op in (GATHER, RESHAPE):
        return (_gather if binding.op == GATHER else _reshape)(tensors, binding, block)
    return _pool(tensors, binding, block, bfloat16)


def reduce_pixels(tensors: PackedTensors, binding: Binding) -> RelaxExpr | None:
    """Compute a mean, maximum or minimum over all pixels of a packed tensor.

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        binding: the operator.

    Returns:
        The result, of shape (n, c). None if the operator is not such a reduction, or if its input
        is not packed.
    """
    shape = binding.shape or ()
    if binding.op not in REDUCTIONS or len(shape) != 2:
        return None
    block = tensors.block_of(binding.args[0])
    if not block or not _is_over_pixels(binding):
        return None
    packed = tensors.as_packed(binding.args[0], block)
    reduction = tensors.emit(REDUCTIONS[binding.op](packed, list(SPATIAL)))
    return tensors.reshape(reduction, shape)


def packed_concat(
    tensors: PackedTensors, binding: Binding, *, bfloat16: bool
) -> tuple[RelaxExpr, int] | None:
    """Concatenate packed tensors along whole blocks of channels.

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        binding: the concatenation, whose result has the shape (n, c, h, w).
        bfloat16: store the result in bfloat16.

    Returns:
        The expression and its block size. None if no operand is packed, or if the operands do not
        consist of whole blocks of channels.
    """
    if binding.shape is None or len(binding.shape) != 4:
        return None
    (parts,), axis = binding.args, binding.value.attrs.axis
    if not isinstance(parts, relax.Tuple) or axis is None or int(axis) % 4 != 1:
        return None
    blocks = [tensors.block_of(field) for field in parts.fields]
    if not any(blocks):
        return None
    block = _block(int(np.gcd.reduce([size for size in blocks if size])), bfloat16)
    if any((shape_of(field) or (0, 1))[1] % block for field in parts.fields) or block < 4:
        return None
    form = tensors.bfloat16 if bfloat16 else tensors.as_packed
    packed = [form(field, block) for field in parts.fields]
    return relax.op.concat(packed, axis=1), block


def packed_norm(
    tensors: PackedTensors, norm: Binding, flat: FlatGraph, *, wide: bool = False
) -> tuple[RelaxExpr, int] | None:
    """Compute a BatchNorm on packed tensors, with one multiplication and one addition per element.

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        norm: a BatchNorm of shape (n, c, h, w) that is not fused into a layer.
        flat: the network.
        wide: keep the block size of the input even if it exceeds `FLOAT_BLOCK`.

    Returns:
        The expression and its block size. None if the input is not packed, if a parameter of the
        BatchNorm is not constant, or if it is in training mode or not along the channels.
    """
    data, *arguments = norm.args
    parameters = [value_of(flat, argument) for argument in arguments]
    block, shape = _block(tensors.block_of(data), wide), shape_of(data) or ()
    attrs = norm.value.attrs
    known = [np.asarray(values, np.float64) for values in parameters if values is not None]
    if not block or len(shape) != 4 or attrs.training or int(attrs.axis) != 1 or len(known) != 4:
        return None
    gamma, beta, mean, variance = known
    factor = gamma / np.sqrt(variance + float(attrs.epsilon))

    def by_block(values: Array) -> RelaxConstant:
        blocked = values.reshape(1, shape[1] // block, 1, 1, block)
        return relax.const(np.ascontiguousarray(blocked, np.float32), "float32")

    scaled = relax.op.multiply(tensors.as_packed(data, block), by_block(factor))
    return relax.op.add(tensors.emit(scaled), by_block(beta - mean * factor)), block


def _block(read: int, wide: bool) -> int:
    """Return the number of channels per block of an operator's result.

    Args:
        read: channels per block of the input.
        wide: keep the input's block size even if it exceeds `FLOAT_BLOCK`.
    """
    return read if wide else min(read, FLOAT_BLOCK)


def _is_by_tensor(binding: Binding) -> bool:
    """Return whether a quantisation has one constant scale and zero point for the whole tensor.

    Args:
        binding: the operator, whose arguments after the first are the scale and the zero point.
    """
    return all(
        isinstance(arg, GenericConst) and arg.value.numpy().size == 1 for arg in binding.args[1:]
    )


def _pair(tensors: PackedTensors, binding: Binding, block: int) -> tuple[RelaxExpr, int] | None:
    operands = [_operand(tensors, arg, binding, block) for arg in binding.args]
    if any(operand is None for operand in operands):
        return None
    return relax.Call(binding.value.op, operands, binding.value.attrs), block


def _operand(
    tensors: PackedTensors, arg: RelaxExpr, binding: Binding, block: int
) -> RelaxExpr | None:
    """Return an elementwise operator's operand in a form that broadcasts with packed tensors.

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        arg: the operand.
        binding: the operator.
        block: channels per block.

    Returns:
        The operand, or None if it cannot be broadcast.
    """
    shape, channels = shape_of(arg), (binding.shape or ())[1]
    if isinstance(arg, GenericConst):
        values = arg.value.numpy()
        if values.size == 1:
            return relax.const(values.reshape(()), str(values.dtype))
        if values.ndim in (3, 4) and values.size == channels == values.shape[-3]:
            blocked = values.reshape(1, channels // block, 1, 1, block)
            return relax.const(np.ascontiguousarray(blocked), str(values.dtype))
        return None
    if not isinstance(arg, relax.Var) or shape is None or len(shape) != 4 or shape[1] != channels:
        return None
    return tensors.as_packed(arg, block)


def _pool(
    tensors: PackedTensors, binding: Binding, block: int, bfloat16: bool
) -> tuple[RelaxExpr, int] | None:
    attrs = binding.value.attrs
    if binding.op == ADAPTIVE_POOL and (binding.shape or ())[2:] == (1, 1):
        return relax.op.mean(
            tensors.as_packed(binding.args[0], block), SPATIAL, keepdims=True
        ), block
    if binding.op in REDUCTIONS:
        if not attrs.keepdims or not _is_over_pixels(binding):
            return None
        packed = tensors.as_packed(binding.args[0], block)
        return REDUCTIONS[binding.op](packed, list(SPATIAL), keepdims=True), block
    if binding.op == RESIZE:
        return _resize_to_nearest(tensors, binding, block)
    if binding.op not in POOLS or attrs.layout != "NCHW":
        return None
    if (window := _window(binding)) is not None:
        return tensors.pool(binding.args[0], block, window, bfloat16=bfloat16), block
    pool = relax.op.nn.max_pool2d if binding.op == MAX_POOL else relax.op.nn.avg_pool2d
    pooled = pool(
        tensors.as_packed(binding.args[0], block),
        pool_size=list(attrs.pool_size), strides=list(attrs.strides),
        padding=list(attrs.padding), dilation=list(attrs.dilation),
        ceil_mode=bool(attrs.ceil_mode), count_include_pad=bool(attrs.count_include_pad),
        layout=f"NCHW{block}c",
    )  # fmt: skip
    return pooled, block


def _window(binding: Binding) -> PoolWindow | None:
    """Return the parameters of a pool whose windows can be unrolled, or None for any other pool."""
    attrs, mean = binding.value.attrs, binding.op == AVERAGE_POOL
    out, pads = (binding.shape or ())[2:], [int(pad) for pad in attrs.padding]
    kernel, stride, dilation = (
        (int(pair[0]), int(pair[1])) for pair in (attrs.pool_size, attrs.strides, attrs.dilation)
    )
    if kernel[0] * kernel[1] > MOST_PIXELS or (mean and attrs.ceil_mode):
        return None
    return PoolWindow(
        (out[0], out[1]), kernel, stride, (pads[0], pads[1]), dilation, mean,
        bool(attrs.count_include_pad),
    )  # fmt: skip


def resize_image(tensors: PackedTensors, binding: Binding) -> tuple[RelaxExpr, int] | None:
    """Resize an image (n, c, h, w) with linear interpolation.

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        binding: the operator.

    Returns:
        The result and its block size. The block size is 0 if the result has the model's layout,
        because the channels do not fill vectors. None if the operator is not a linear resize, or if
        it uses an unsupported coordinate mode, layout or type.
    """
    if binding.op != RESIZE:
        return None
    shape, before = binding.shape or (), shape_of(binding.args[0]) or ()
    if len(shape) != 4 or len(before) != 4:
        return None
    attrs = binding.value.attrs
    mode = str(attrs.coordinate_transformation_mode)
    typed = str(attrs.out_dtype) in ("", "void", "float32", "None")
    if attrs.layout != "NCHW" or attrs.method != "linear" or mode not in MODES or not typed:
        return None
    block = min(tensors.block_of(binding.args[0]), FLOAT_BLOCK)
    if before[2:] == (1, 1) or (not block and before[1] == 1):
        return None
    return tensors.resize(binding.args[0], block if is_vector(block) else 0, shape[2:], mode)


def _resize_to_nearest(
    tensors: PackedTensors, binding: Binding, block: int
) -> tuple[RelaxExpr, int] | None:
    """Resize a packed image, copying the nearest source pixel to each result pixel.

    One source position is computed per block of channels.

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        binding: the operator.
        block: channels per block.

    Returns:
        The result and its block size, or None if the operator has an unsupported form.
    """
    attrs = binding.value.attrs
    if attrs.layout != "NCHW" or attrs.coordinate_transformation_mode == "tf_crop_and_resize":
        return None
    resized_image = relax.op.image.resize2d(
        tensors.as_packed(binding.args[0], block), binding.args[1],
        layout=f"NCHW{block}c", method=attrs.method,
        coordinate_transformation_mode=attrs.coordinate_transformation_mode,
        rounding_method=attrs.rounding_method, cubic_alpha=float(attrs.cubic_alpha),
        cubic_exclude=int(attrs.cubic_exclude),
        extrapolation_value=float(attrs.extrapolation_value), out_dtype=attrs.out_dtype,
    )  # fmt: skip
    return resized_image, block


def _is_over_pixels(binding: Binding) -> bool:
    axes = binding.value.attrs.axis
    return axes is not None and tuple(sorted(int(axis) % 4 for axis in axes)) == SPATIAL


def _gather(tensors: PackedTensors, binding: Binding, block: int) -> tuple[RelaxExpr, int] | None:
    """Gather whole images of a packed batch.

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        binding: the Gather operator.
        block: channels per block.

    Returns:
        The result and its block size. None if the operator gathers along another axis than the
        batch, or if its indices are not a constant vector of valid, non-negative indices.
    """
    data, places = binding.args
    shape = shape_of(data) or ()
    known = places.value.numpy() if isinstance(places, GenericConst) else np.array([-1])
    inside = ((known >= 0) & (known < shape[0])).all()
    if binding.value.attrs.axis != 0 or known.ndim != 1 or not inside:
        return None
    return _copy_images(tensors, data, block, known), block


def _copy_images(tensors: PackedTensors, data: RelaxExpr, block: int, places: Array) -> RelaxExpr:
    """Return the images with the given indices, where the index −1 stands for an image of zeros.

    Images are copied as rows. This needs one index per image instead of one per block of channels.

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        data: variable of the source images.
        block: channels per block.
        places: image indices, of shape (m,).
    """
    n, c, h, w = shape_of(data) or ()
    rows = tensors.reshape(tensors.as_packed(data, block), (n, c * h * w))
    copied_rows = tensors.copied_rows(rows, relax.const(places, "int64"))
    return tensors.reshape(copied_rows, (len(places), c // block, h, w, block))


def _choice(
    tensors: PackedTensors, binding: Binding, block: int, gather: Binding | None
) -> tuple[RelaxExpr, int] | None:
    """Compute a selection between gathered images and zeros as a single gather.

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        binding: the selection, which has a constant flag per image.
        block: channels per block.
        gather: the operator that gathers the images, or None if another kind of operator writes
            them.

    Returns:
        The result and its block size. None if the flags are not constant, or if the operands are
        not gathered images and zeros.
    """
    which, _, other = binding.args
    if gather is None or gather.op != GATHER or _gather(tensors, gather, block) is None:
        return None
    if not (isinstance(which, GenericConst) and isinstance(other, GenericConst)):
        return None
    flags, (data, places) = which.value.numpy(), gather.args
    images = (binding.shape or (0,))[0]
    if (
        flags.shape != (images, 1, 1, 1)
        or gather.shape != binding.shape
        or other.value.numpy().any()
    ):
        return None
    return _copy_images(
        tensors, data, block, np.where(flags.ravel(), places.value.numpy(), -1)
    ), block


def _reshape(tensors: PackedTensors, binding: Binding, block: int) -> tuple[RelaxExpr, int] | None:
    """Merge the channels of several packed images into one image, or split an image into several.

    Args:
        tensors: the tensors of the rewritten network that exist so far.
        binding: the reshape.
        block: channels per block.

    Returns:
        The result and its block size, or None if the operator is another reshape.
    """
    data, (n, c, h, w) = binding.args[0], binding.shape or ()
    before = shape_of(data) or ()
    if len(before) != 4 or before[2:] != (h, w) or c % block:
        return None
    return tensors.reshape(tensors.as_packed(data, block), (n, c // block, h, w, block)), block
