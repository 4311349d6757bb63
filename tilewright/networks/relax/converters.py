"""Convert ONNX operators that TVM's importer lacks or converts to an unsuitable form.

The important differences are:

- BatchNormalization gives the single result that it has in inference. TVM's converter returns all
  three results of training, without names.
- Clip becomes `relax.clip`, and Einsum becomes `relax.einsum`. TVM's converters emit calls of
  TensorIR functions, which patterns cannot match.
- Gather never reads memory outside its tensor.
- The integer operators of the ONNX standard and of onnxruntime become a dequantisation, a float
  operator and a quantisation, as in QDQ models (models with explicit QuantizeLinear and
  DequantizeLinear). This form is exact as long as sums stay below 2²⁴.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from tilewright.core.tvm_types import BlockBuilder, OnnxAttributes, RelaxExpr
from tilewright.networks.relax.bindings import shape_of
from tilewright.networks.relax.resizing import resize

MICROSOFT = "com.microsoft"

Inputs = Sequence[RelaxExpr]
Converter = Callable[[BlockBuilder, Inputs, OnnxAttributes], RelaxExpr | None]


def _clip(bb: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr:
    """Convert Clip to `relax.clip` if its bounds are constant, otherwise to maximum and minimum.

    TVM's own converter emits calls of TensorIR functions. If the lower bound is above the upper
    bound, the result is the upper bound, as in ONNX.
    """
    given = [inputs[i] if len(inputs) > i else None for i in (1, 2)]
    numbers = [
        _constant_number(bound, attrs.get(name, open_end))
        for bound, name, open_end in zip(given, ("min", "max"), (-np.inf, np.inf), strict=True)
    ]
    known = [number for number in numbers if number is not None]
    if str(inputs[0].ty.dtype) == "float32" and len(known) == 2 and known[0] <= known[1]:
        if known == [0.0, np.inf]:
            return relax.op.nn.relu(inputs[0])
        return relax.op.clip(inputs[0], *known)
    made, dtype = inputs[0], str(inputs[0].ty.dtype)
    for bound, name, cut in zip(
        given, ("min", "max"), (relax.op.maximum, relax.op.minimum), strict=True
    ):
        if bound is None and name in attrs:
            bound = relax.const(attrs[name], dtype)
        made = made if bound is None else bb.emit(cut(made, bound))
    return made


def _constant_number(bound: RelaxExpr | None, otherwise: float) -> float | None:
    """Return the value of a bound of ONNX's Clip.

    Args:
        bound: the bound, or None if the Clip does not have it.
        otherwise: value that is returned if there is no bound.

    Returns:
        The value, or None if the bound is computed at run time.
    """
    if bound is None:
        return otherwise
    return float(bound.value.numpy().item()) if isinstance(bound, GenericConst) else None


def _softplus(bb: BlockBuilder, inputs: Inputs, _: OnnxAttributes) -> RelaxExpr:
    """Convert Softplus to max(x, 0) + log(1 + u) with u = exp(−|x|).

    TVM's own converter gives 0 below −16, where 1 + u rounds to 1. Here, with w for the rounded sum
    1 + u, the logarithm is computed as log(w) · u / (w − 1). This form loses no digits of u.
    """
    (x,) = inputs
    dtype = str(x.ty.dtype)
    one = relax.const(1, dtype)
    u = bb.emit(relax.op.exp(relax.op.negative(relax.op.abs(x))))
    w = bb.emit(relax.op.add(one, u))
    scaled = relax.op.multiply(relax.op.log(w), relax.op.divide(u, relax.op.subtract(w, one)))
    log1p = bb.emit(relax.op.where(relax.op.equal(w, one), u, scaled))
    return relax.op.add(relax.op.maximum(x, relax.const(0, dtype)), log1p)


def _batch_norm(bb: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr | None:
    """Convert BatchNormalization for inference; return None in training mode."""
    if attrs.get("training_mode", 0):
        return None
    norm = relax.op.nn.batch_norm(
        *inputs[:5], axis=1, epsilon=attrs.get("epsilon", 1e-5), training=False
    )
    return relax.TupleGetItem(bb.emit(norm), 0)


def _dequantise(x: RelaxExpr, scale: RelaxExpr, zero: RelaxExpr, axis: int = 1) -> RelaxExpr:
    zero = relax.const(0, str(x.ty.dtype)) if zero is None else zero
    return relax.op.dequantize(x, _vector(scale), _vector(zero), axis=axis, out_dtype="float32")


def _quantise(bb: BlockBuilder, x: RelaxExpr, scale: RelaxExpr, zero: RelaxExpr) -> RelaxExpr:
    dtype = "uint8" if zero is None else str(zero.ty.dtype)
    zero = relax.const(0, dtype) if zero is None else zero
    return bb.normalize(
        relax.op.quantize(x, _vector(scale), _vector(zero), axis=1, out_dtype=dtype)
    )


def _dynamic_quantise(bb: BlockBuilder, inputs: Inputs, _: OnnxAttributes) -> RelaxExpr:
    """Convert DynamicQuantizeLinear, which quantises to uint8.

    The scale and the zero point cover 0 and all values. If all values are 0, the scale is 1 as in
    onnxruntime; TVM's own converter gives NaN.
    """
    (x,) = inputs
    zero = relax.const(0.0, "float32")
    least = bb.emit(relax.op.minimum(relax.op.min(x), zero))
    most = bb.emit(relax.op.maximum(relax.op.max(x), zero))
    span = bb.emit(relax.op.divide(relax.op.subtract(most, least), relax.const(255.0, "float32")))
    none = relax.op.equal(span, zero)
    scale = bb.emit(relax.op.where(none, relax.const(1.0, "float32"), span))
    below = bb.emit(relax.op.subtract(zero, least))
    middle = bb.emit(relax.op.quantize(below, scale, relax.const(0, "uint8"), out_dtype="uint8"))
    integers = bb.emit(relax.op.quantize(x, scale, middle, out_dtype="uint8"))
    return relax.Tuple([integers, scale, middle])


def _vector(value: RelaxExpr) -> RelaxExpr:
    """Convert a constant of shape (1,) to a scalar; return any other value unchanged.

    Per-tensor scales are usually scalars.
    """
    if isinstance(value, GenericConst) and shape_of(value) == (1,):
        return relax.const(value.value.numpy()[0], str(value.ty.dtype))
    return value


def _q_linear_conv(bb: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = inputs[:8]
    bias = inputs[8] if len(inputs) > 8 else None
    data = bb.emit(_dequantise(x, x_scale, x_zero))
    weight = bb.emit(_dequantise(w, w_scale, w_zero, axis=0))
    out = bb.emit(_conv(data, weight, attrs, "float32"))
    if bias is not None:
        scale = bb.emit(relax.op.multiply(_vector(x_scale), _vector(w_scale)))
        real = bb.emit(relax.op.multiply(relax.op.astype(bias, "float32"), scale))
        out = bb.emit(relax.op.add(out, bb.emit(relax.op.reshape(real, [1, -1, 1, 1]))))
    return _quantise(bb, out, y_scale, y_zero)


def _conv(data: RelaxExpr, weight: RelaxExpr, attrs: OnnxAttributes, dtype: str) -> RelaxExpr:
    if len(shape_of(data) or ()) != 4:
        raise ValueError("only quantised convolutions of images and of sequences are supported")
    return relax.op.nn.conv2d(
        data,
        weight,
        strides=attrs.get("strides", (1, 1)),
        padding=attrs.get("pads", (0, 0, 0, 0)),
        dilation=attrs.get("dilations", (1, 1)),
        groups=attrs.get("group", 1),
        out_dtype=dtype,
    )


def _conv_integer(bb: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr:
    parts = []
    for i in (0, 1):
        zero = inputs[i + 2] if len(inputs) > i + 2 else None
        wide = bb.emit(relax.op.astype(inputs[i], "int32"))
        if zero is not None:
            zero = relax.op.astype(_vector(zero), "int32")
            if i == 1 and len(shape_of(inputs[3]) or ()) == 1 and shape_of(inputs[3]) != (1,):
                zero = relax.op.reshape(zero, [-1, 1, 1, 1])
            wide = bb.emit(relax.op.subtract(wide, zero))
        parts.append(wide)
    return bb.normalize(_conv(parts[0], parts[1], attrs, "int32"))


def _q_linear_matmul(bb: BlockBuilder, inputs: Inputs, _: OnnxAttributes) -> RelaxExpr:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs[:8]
    left = bb.emit(_dequantise(a, a_scale, a_zero, axis=0))
    right = bb.emit(_dequantise(b, b_scale, b_zero))
    return _quantise(bb, bb.emit(relax.op.matmul(left, right)), y_scale, y_zero)


def _q_gemm(bb: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr:
    a, a_scale, a_zero, b, b_scale, b_zero = inputs[:6]
    bias, y_scale, y_zero = [*inputs[6:], None, None, None][:3]
    if attrs.get("transA", 0):
        raise ValueError("QGemm with transA is not supported")
    left = bb.emit(_dequantise(a, a_scale, a_zero))
    transposed = attrs.get("transB", 0)
    right = bb.emit(_dequantise(b, b_scale, b_zero, axis=0 if transposed else 1))
    if transposed:
        right = bb.emit(relax.op.permute_dims(right, [1, 0]))
    out = bb.emit(relax.op.matmul(left, right))
    if attrs.get("alpha", 1.0) != 1.0:
        out = bb.emit(relax.op.multiply(out, relax.const(attrs["alpha"], "float32")))
    if bias is not None:
        scale = relax.op.multiply(_vector(a_scale), _vector(b_scale))
        real = bb.emit(relax.op.multiply(relax.op.astype(bias, "float32"), scale))
        out = bb.emit(relax.op.add(out, real))
    return bb.normalize(out) if y_scale is None else _quantise(bb, out, y_scale, y_zero)


def _q_linear_add(bb: BlockBuilder, inputs: Inputs, _: OnnxAttributes) -> RelaxExpr:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = [*inputs, None][:8]
    left = bb.emit(_dequantise(a, a_scale, a_zero))
    right = bb.emit(_dequantise(b, b_scale, b_zero))
    return _quantise(bb, bb.emit(relax.op.add(left, right)), y_scale, y_zero)


def _q_global_average_pool(bb: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr:
    x, x_scale, x_zero, y_scale, y_zero = inputs[:5]
    if attrs.get("channels_last", 0):
        raise ValueError("channels_last pooling is not supported")
    mean = relax.op.mean(bb.emit(_dequantise(x, x_scale, x_zero)), axis=[2, 3], keepdims=True)
    return _quantise(bb, bb.emit(mean), y_scale, y_zero)


def _einsum(_: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr:
    """Convert Einsum to `relax.einsum`, which can be matched and whose operations can be counted.

    TVM's own converter emits a call of a TensorIR function.
    """
    return relax.op.einsum(list(inputs), attrs["equation"].decode())


def _gather(bb: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr | None:
    """Convert Gather, assuming that the indices are not negative.

    `input_checks` has already replaced negative indices, and TVM's own converter would handle them
    again. Return None, so that TVM's converter is used, if an input is a shape, if all inputs are
    constant, or if the shape of the data is unknown.
    """
    data, indices = inputs[:2]
    shape, axis = shape_of(data), attrs.get("axis", 0)
    if all(isinstance(item, GenericConst) for item in (data, indices)) or not shape:
        return None
    if isinstance(data, relax.ShapeExpr) or isinstance(indices, relax.ShapeExpr):
        return None
    return relax.op.take(data, indices, axis, mode="clip")


def _one_hot(bb: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr | None:
    """Convert OneHot to a tensor with the type of its values.

    TVM's own converter always gives float64 or int64. Return None, so that TVM's converter is used,
    if the depth or the values are not constant.
    """
    indices, depth, values = inputs
    if not isinstance(depth, GenericConst) or not isinstance(values, GenericConst):
        return None
    places, kind = int(depth.value.numpy().item()), str(values.ty.dtype)
    if not str(indices.ty.dtype).startswith("int"):
        indices = bb.emit(relax.op.astype(indices, "int64"))
    none = relax.const(0, str(indices.ty.dtype))
    behind = bb.emit(relax.op.add(indices, relax.const(places, str(indices.ty.dtype))))
    indices = bb.emit(relax.op.where(relax.op.less(indices, none), behind, indices))
    off, on = (relax.prim_value(tirx.const(item, kind)) for item in values.value.numpy().tolist())
    return relax.op.one_hot(indices, on, off, places, attrs.get("axis", -1))


def _split(_: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr | None:
    """Convert a Split into a given number of parts, the last of which may be shorter.

    TVM's own converter requires equal parts. Return None, so that TVM's converter is used, if the
    lengths of the parts are given.
    """
    count, shape = attrs.get("num_outputs"), shape_of(inputs[0])
    if not count or not shape or (len(inputs) > 1 and inputs[1] is not None):
        return None
    axis = int(attrs.get("axis", 0)) % len(shape)
    length = -(-shape[axis] // int(count))
    ends = [min(length * place, shape[axis]) for place in range(1, int(count))]
    return relax.op.split(inputs[0], ends, axis)


def _div(bb: BlockBuilder, inputs: Inputs, _: OnnxAttributes) -> RelaxExpr | None:
    """Convert a division of signed integers so that no operands crash the process.

    The smallest integer divided by −1 would crash. Here, the result is the smallest integer itself,
    as in NumPy. Return None, so that TVM's converter is used, for other types.
    """
    if not _are_signed(inputs):
        return None
    by_minus_one, divisor = _without_minus_one(bb, inputs[1])
    quotient = bb.emit(relax.op.divide(inputs[0], divisor))
    return relax.op.where(by_minus_one, bb.emit(relax.op.negative(inputs[0])), quotient)


def _mod(bb: BlockBuilder, inputs: Inputs, attrs: OnnxAttributes) -> RelaxExpr | None:
    """Convert the remainder of signed integers so that no operands crash the process.

    As in `_div`, a division of the smallest integer by −1 would crash. Return None, so that TVM's
    converter is used, for other types.
    """
    if not _are_signed(inputs):
        return None
    by_minus_one, divisor = _without_minus_one(bb, inputs[1])
    remainder = relax.op.mod if attrs.get("fmod", 0) else relax.op.floor_mod
    none = relax.const(0, str(inputs[0].ty.dtype))
    return relax.op.where(by_minus_one, none, bb.emit(remainder(inputs[0], divisor)))


def _are_signed(inputs: Inputs) -> bool:
    """Return whether all inputs are tensors of signed integers and not all are constant."""
    known = all(isinstance(value, GenericConst) for value in inputs)
    types = [getattr(value, "ty", None) for value in inputs]
    return not known and all(
        isinstance(kind, relax.TensorType) and str(kind.dtype).startswith("int") for kind in types
    )


def _without_minus_one(bb: BlockBuilder, divisor: RelaxExpr) -> tuple[RelaxExpr, RelaxExpr]:
    """Replace the elements of an integer divisor that are −1 by 1.

    Dividing the smallest integer by −1 would end the process.

    Args:
        bb: block builder of the importer.
        divisor: the divisor.

    Returns:
        A mask of the elements that are −1, and the divisor with 1 in their place.
    """
    dtype = str(divisor.ty.dtype)
    result = bb.emit(relax.op.equal(divisor, relax.const(-1, dtype)))
    return result, bb.emit(relax.op.where(result, relax.const(1, dtype), divisor))


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "BatchNormalization"): _batch_norm,
    ("", "Clip"): _clip,
    ("", "Div"): _div,
    ("", "Einsum"): _einsum,
    ("", "Gather"): _gather,
    ("", "Mod"): _mod,
    ("", "OneHot"): _one_hot,
    ("", "QLinearConv"): _q_linear_conv,
    ("", "Resize"): resize,
    ("", "Softplus"): _softplus,
    ("", "Split"): _split,
    ("", "ConvInteger"): _conv_integer,
    ("", "DynamicQuantizeLinear"): _dynamic_quantise,
    ("", "QLinearMatMul"): _q_linear_matmul,
    (MICROSOFT, "QGemm"): _q_gemm,
    (MICROSOFT, "QLinearAdd"): _q_linear_add,
    (MICROSOFT, "QLinearGlobalAveragePool"): _q_global_average_pool,
}
