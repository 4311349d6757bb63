"""Convert pools, reductions, window reductions, normalisations, resizing and dilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.tflite.elementwise import Rule, finish, input_index, output
from tilewright.networks.tflite.file import Shape, TfliteOperator
from tilewright.networks.tflite.logic import cast
from tilewright.networks.tflite.products import pads, pair, shape_of
from tilewright.networks.tflite.writer import FILED, FIRST, OPSET, Missing, Writer, check_elements


def _pool(op: str, writer: Writer, operator: TfliteOperator) -> None:
    data = input_index(operator, 0)
    _, height, width, _ = shape_of(writer, data, 4, "its data")
    kernel = pair(operator, "FilterHeight", "FilterWidth")
    strides = pair(operator, "StrideH", "StrideW")
    # ONNX also excludes padding from averages and maxima
    result = writer.node(
        op, [writer.real(data, FIRST)], kernel_shape=kernel, strides=strides,
        pads=pads(operator, (height, width), kernel, strides, (1, 1)),
    )  # fmt: skip
    finish(writer, operator, result, FIRST)


def _reduce(op: str, writer: Writer, operator: TfliteOperator) -> None:
    data = input_index(operator, 0)
    rank = len(writer.tensors[data].shape)
    axes = writer.integers(input_index(operator, 1), "its axes")
    if any(not -rank <= axis < rank for axis in axes):
        raise Missing(f"it reduces the axes {axes} of {rank} dimensions")
    if not axes:
        finish(writer, operator, writer.node("Identity", [writer.real(data)]))
        return
    axes, keep = sorted({axis % rank for axis in axes}), operator.integer("KeepDims")
    layout = FIRST if rank == 4 and (writer.layout(data) is FIRST or axes == [1, 2]) else FILED
    if layout is FIRST and not keep and axes not in ([1, 2], [1, 2, 3]):
        layout = FILED  # otherwise the remaining axes would be in another order
    moved = sorted(layout.axis(axis, rank) for axis in axes)
    real = writer.real(data, layout)
    if operator.kind in ("REDUCE_ANY", "REDUCE_ALL"):
        real = writer.node("Cast", [real], "CastData", to=6)  # to int32
    if op == "ReduceMean" and layout is FIRST and moved == [2, 3] and keep:
        reduced = writer.node("GlobalAveragePool", [real])
    else:
        reduced = reduce_axes(writer, op, real, moved, keep=bool(keep))
    if operator.kind in ("REDUCE_ANY", "REDUCE_ALL"):
        if 0 in writer.tensors[data].shape:  # the maximum of no elements is the smallest integer
            zero = writer.add("zero", np.array(0, np.int32))
            reduced = writer.node("Greater", [reduced, zero], "IsAny")
        else:
            reduced = writer.node("Cast", [reduced], "CastResult", to=9)  # to bool
    finish(writer, operator, reduced, layout if keep else FILED)


def reduce_axes(
    writer: Writer, op: str, real: str, axes: Sequence[int], *, keep: bool, suffix: str = ""
) -> str:
    """Add a reduction over axes, and return the name of its result.

    The axes are an attribute or an input of the node, depending on the opset.

    Args:
        writer: writer of the graph.
        op: ONNX operator type of the reduction.
        real: name of the data.
        axes: axes to reduce.
        keep: keep the reduced axes, with length 1.
        suffix: suffix of the node's name.
    """
    if writer.opset > OPSET or op == "ReduceSum":
        sizes = writer.add("axes", np.array(axes, np.int64))
        return writer.node(op, [real, sizes], suffix, keepdims=int(keep))
    return writer.node(op, [real], suffix, axes=list(axes), keepdims=int(keep))


def _l2_pool(writer: Writer, operator: TfliteOperator) -> None:
    """Convert L2_POOL_2D, which computes the square root of the mean of the squares.

    ONNX's LpPool uses the sum of the squares instead of the mean.
    """
    data = input_index(operator, 0)
    _, height, width, _ = shape_of(writer, data, 4, "its data")
    kernel = pair(operator, "FilterHeight", "FilterWidth")
    strides = pair(operator, "StrideH", "StrideW")
    real = writer.real(data, FIRST)
    mean = writer.node(
        "AveragePool", [writer.node("Mul", [real, real], "Mul")], "AveragePool",
        kernel_shape=kernel, strides=strides,
        pads=pads(operator, (height, width), kernel, strides, (1, 1)),
    )  # fmt: skip
    finish(writer, operator, writer.node("Sqrt", [mean]), FIRST)


def _l2_normalise(writer: Writer, operator: TfliteOperator) -> None:
    """Convert L2_NORMALIZATION, which divides by the norm along the last axis.

    As in TensorFlow Lite, a norm below 1e-6 is replaced by 1e-6.
    """
    data = input_index(operator, 0)
    rank = len(writer.tensors[data].shape)
    real = writer.real(data)
    squares = writer.node("Mul", [real, real], "Mul")
    total = reduce_axes(writer, "ReduceSum", squares, [rank - 1], keep=True, suffix="ReduceSum")
    norm = writer.node("Sqrt", [total], "Sqrt")
    least = writer.node("Max", [norm, writer.add("least", np.float32(1e-6))], "Max")
    finish(writer, operator, writer.node("Div", [real, least]))


def _local_response(writer: Writer, operator: TfliteOperator) -> None:
    """Convert LOCAL_RESPONSE_NORMALIZATION to ONNX.

    ONNX divides alpha by the size of the window, so alpha is multiplied by this size beforehand.
    """
    data = input_index(operator, 0)
    shape_of(writer, data, 4, "its data")
    size = 2 * operator.integer("Radius") + 1
    normalised = writer.node(
        "LRN", [writer.real(data, FIRST)], size=size, bias=operator.number("Bias", 0.0),
        alpha=operator.number("Alpha", 0.0) * size, beta=operator.number("Beta", 0.0),
    )  # fmt: skip
    finish(writer, operator, normalised, FIRST)


def _resize(mode: str, writer: Writer, operator: TfliteOperator) -> None:
    data, result = input_index(operator, 0), output(operator)
    shape_of(writer, data, 4, "its data")
    wanted = FIRST.permute_shape(shape_of(writer, result, 4, "its results"))
    corners, centres = operator.integer("AlignCorners"), operator.integer("HalfPixelCenters")
    mapping = "align_corners" if corners else "half_pixel" if centres else "asymmetric"
    # TFLite rounds to the nearest pixel with aligned corners or half-pixel centres, else down.
    nearest = {"nearest_mode": "round_prefer_ceil" if corners or centres else "floor"}
    resized = writer.node(
        "Resize",
        [writer.real(data, FIRST), "", "", writer.add("sizes", np.array(wanted, np.int64))],
        mode=mode, coordinate_transformation_mode=mapping, **(nearest if mode == "nearest" else {}),
    )  # fmt: skip
    finish(writer, operator, resized, FIRST)


IMAGE_RULES: Mapping[str, Rule] = {
    "AVERAGE_POOL_2D": partial(_pool, "AveragePool"),
    "MAX_POOL_2D": partial(_pool, "MaxPool"),
    "MEAN": partial(_reduce, "ReduceMean"),
    "SUM": partial(_reduce, "ReduceSum"),
    "REDUCE_MAX": partial(_reduce, "ReduceMax"),
    "REDUCE_MIN": partial(_reduce, "ReduceMin"),
    "REDUCE_PROD": partial(_reduce, "ReduceProd"),
    "REDUCE_ANY": partial(_reduce, "ReduceMax"),
    "REDUCE_ALL": partial(_reduce, "ReduceMin"),
    "L2_POOL_2D": _l2_pool,
    "L2_NORMALIZATION": _l2_normalise,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "RESIZE_BILINEAR": partial(_resize, "linear"),
    "RESIZE_NEAREST_NEIGHBOR": partial(_resize, "nearest"),
}
"""Conversion rules of pools, reductions, normalisations and resizing, by the operator's name in the
schema."""


FUNCTIONS = ("", "add", "mul", "min", "max", "all", "any")
"""Names of the combining functions, indexed by the value of the schema's enumeration
`ReduceWindowFunction`."""

REDUCERS: Mapping[str, tuple[str, str]] = {
    "add": ("ReduceSum", "Add"), "mul": ("ReduceProd", "Mul"), "min": ("ReduceMin", "Min"),
    "max": ("ReduceMax", "Max"), "all": ("ReduceMin", "Min"), "any": ("ReduceMax", "Max"),
}  # fmt: skip
"""ONNX operators that reduce a tensor and that combine two tensors, by the name of the combining
function."""

COMBINERS: Mapping[str, str] = {
    **dict.fromkeys(("ADD", "STABLEHLO_ADD"), "add"),
    **dict.fromkeys(("MUL", "STABLEHLO_MULTIPLY"), "mul"),
    **dict.fromkeys(("MINIMUM", "STABLEHLO_MINIMUM"), "min"),
    **dict.fromkeys(("MAXIMUM", "STABLEHLO_MAXIMUM"), "max"),
    **dict.fromkeys(("LOGICAL_AND", "STABLEHLO_AND"), "all"),
    **dict.fromkeys(("LOGICAL_OR", "STABLEHLO_OR"), "any"),
}
"""Name of the combining function that a graph with a single operator computes, by the kind of this
operator."""

REDUCIBLE = frozenset(("float32", "float64", "int32", "int64"))
"""Element types that onnxruntime supports for all reductions in `REDUCERS`."""

Integers = NDArray[np.int64]


def combiner(writer: Writer, operator: TfliteOperator, option: str) -> str:
    """Name the function of two numbers that a graph of the file computes, such as their sum.

    Args:
        writer: writer of the graph.
        operator: the operator that executes the graph, for example a reduction.
        option: name of the operator's option that contains the number of the graph.

    Returns:
        A key of `REDUCERS`, or "second" for a graph that returns its second input.

    Raises:
        Missing: the graph computes something else.
    """
    graph = writer.subgraphs.get(operator.integer(option, -1))
    if graph is not None and len(graph.inputs) == 2 and len(graph.outputs) == 1:
        if not graph.operators and graph.outputs[0] == graph.inputs[1]:
            return "second"
        if len(graph.operators) == 1:
            (only,) = graph.operators
            fits = sorted(only.inputs) == sorted(graph.inputs) and only.outputs == graph.outputs
            if fits and only.kind in COMBINERS and not only.integer("FusedActivationFunction"):
                function = COMBINERS[only.kind]
                is_logical = graph.tensors[graph.inputs[0]].dtype == "bool"
                if is_logical == (function in ("all", "any")):
                    return function
    raise Missing(
        "its reduction graph is not a single sum, product, minimum, maximum or logical operation"
    )


def spread(
    writer: Writer, name: str, shape: Shape, axis: int, sources: Integers, filling: str
) -> str:
    """Gather elements of a tensor along an axis, with a scalar in place of missing elements.

    Args:
        writer: writer of the graph.
        name: name of the tensor.
        shape: shape of the tensor.
        axis: axis along which elements are gathered.
        sources: source index of each element of the result, or −1 for the fill value; int64 array
            of shape (n,).
        filling: name of the scalar with the fill value.

    Returns:
        The name of the result.
    """
    size = shape[axis]
    if np.array_equal(sources, np.arange(size)):
        return name
    if (sources < 0).any():
        one = [1 if i == axis else length for i, length in enumerate(shape)]
        sizes = writer.add("shape", np.array(one, np.int64))
        scalar = writer.node("Expand", [filling, sizes], f"Filling{axis}")
        name = writer.node("Concat", [name, scalar], f"Filled{axis}", axis=axis)
        sources = np.where(sources < 0, size, sources)
    places = writer.add("places", sources.astype(np.int64))
    return writer.node("Gather", [name, places], f"Spread{axis}", axis=axis)


def dilated_places(size: int, dilation: int, low: int, high: int) -> Integers:
    """Return the source indices with which `spread` dilates and pads an axis.

    Args:
        size: length of the axis.
        dilation: distance between neighbouring elements in the result.
        low: padding before the elements. A negative number cuts off elements.
        high: padding after the elements. A negative number cuts off elements.

    Returns:
        Source index of each element of the result, or −1 for padding; int64 array of shape (n,).

    Raises:
        Missing: the dilation is not positive, more elements are cut off than there are, or the
            result is too large.
    """
    span = (size - 1) * dilation + 1 if size else 0
    if dilation < 1 or span + low + high < 0:
        raise Missing(f"it dilates {size} elements by {dilation} with padding of {low} and {high}")
    check_elements(span + low + high)
    places = np.arange(span + low + high, dtype=np.int64) - low
    kept = (places >= 0) & (places < span) & (places % dilation == 0)
    return np.where(kept, places // dilation, -1)


def _dilate(writer: Writer, operator: TfliteOperator) -> None:
    data, shape = input_index(operator, 0), writer.tensors[input_index(operator, 0)].shape
    dilations = writer.integers(input_index(operator, 1), "its dilations")
    if len(dilations) != len(shape):
        raise Missing(f"it has {len(dilations)} dilations for {len(shape)} dimensions")
    name, filling = writer.real(data), writer.real(input_index(operator, 2))
    writer.write(output(operator), dilate(writer, name, shape, dilations, filling))


def dilate(
    writer: Writer, name: str, shape: Shape, dilations: Sequence[int], filling: str,
    pads: Sequence[tuple[int, int]] | None = None,
) -> str:  # fmt: skip
    """Dilate and pad a tensor.

    Args:
        writer: writer of the graph.
        name: name of the tensor.
        shape: shape of the tensor.
        dilations: distance between neighbouring elements in the result, per axis.
        filling: name of the scalar that fills gaps and padding.
        pads: padding (low, high) per axis, or None for no padding.

    Returns:
        The name of the result.
    """
    sizes = list(shape)
    for axis, dilation in enumerate(dilations):
        low, high = (0, 0) if pads is None else pads[axis]
        places = dilated_places(sizes[axis], dilation, low, high)
        name = spread(writer, name, tuple(sizes), axis, places, filling)
        sizes[axis] = len(places)
    return writer.node("Identity", [name])


def _reduce_windows(writer: Writer, operator: TfliteOperator) -> None:
    """Convert REDUCE_WINDOW to ONNX.

    Its window, strides and dilations are inputs. The operator has no padding.
    """
    number = operator.integer("ReduceFunction")
    if not 0 < number < len(FUNCTIONS):
        raise Missing(f"its function {number} is not supported")
    window, strides, dilations = (
        writer.integers(input_index(operator, i), what)
        for i, what in ((2, "its window"), (3, "its strides"), (4, "its dilations"))
    )
    _write_windows(writer, operator, FUNCTIONS[number], window, strides, dilations, [], [])


def _reduce_windows_stablehlo(writer: Writer, operator: TfliteOperator) -> None:
    if len(operator.inputs) != 2:
        raise Missing(f"it reduces {len(operator.inputs) // 2} tensors at once")
    rank = len(writer.tensors[input_index(operator, 0)].shape)
    window, strides, base, dilations = (
        _numbers(operator, option, rank)
        for option in ("WindowDimensions", "WindowStrides", "BaseDilations", "WindowDilations")
    )
    padding = operator.options.get("Padding", ())
    pads = list(padding) if isinstance(padding, tuple) and padding else [0] * (2 * rank)
    if len(pads) != 2 * rank:
        raise Missing(f"it pads {len(pads) // 2} of {rank} dimensions")
    function = combiner(writer, operator, "BodySubgraphIndex")
    _write_windows(writer, operator, function, window, strides, dilations, base, pads)


def _numbers(operator: TfliteOperator, option: str, rank: int) -> list[int]:
    """Return an option of an operator that holds one number per dimension.

    Args:
        operator: the operator.
        option: name of the option.
        rank: number of dimensions.

    Returns:
        The numbers; ones if the option is absent.

    Raises:
        Missing: the option has another length.
    """
    values = operator.options.get(option, ())
    numbers = [int(value) for value in values] if isinstance(values, tuple) else []
    if len(numbers) not in (0, rank):
        raise Missing(f"its {option} does not fit {rank} dimensions")
    return numbers or [1] * rank


def _write_windows(
    writer: Writer, operator: TfliteOperator, function: str, window: Sequence[int],
    strides: Sequence[int], dilations: Sequence[int], base: Sequence[int], pads: Sequence[int],
) -> None:  # fmt: skip
    data, result = input_index(operator, 0), output(operator)
    sizes = list(writer.tensors[data].shape)
    rank = len(sizes)
    if not len(window) == len(strides) == len(dilations) == rank or function == "second":
        raise Missing("its windows do not fit its data")
    if min([*window, *strides, *dilations], default=1) < 1:
        raise Missing("a size of its windows is not positive")
    numbers = _Numbers(writer, operator, function)
    name, start = (
        numbers.converted_name(data, "Data"),
        numbers.converted_name(input_index(operator, 1), "Start"),
    )
    for axis in range(rank):
        low, high = pads[2 * axis : 2 * axis + 2] if pads else (0, 0)
        places = dilated_places(sizes[axis], base[axis] if base else 1, low, high)
        name = spread(writer, name, tuple(sizes), axis, places, start)
        count = (len(places) - dilations[axis] * (window[axis] - 1) - 1) // strides[axis] + 1
        sizes[axis] = max(count, 0)
        check_elements(max(sizes[axis], 1) * window[axis])
        first = np.arange(sizes[axis], dtype=np.int64) * strides[axis]
        taps = np.arange(window[axis], dtype=np.int64) * dilations[axis]
        if window[axis] == 1:
            shape = (*sizes[:axis], len(places), *sizes[axis + 1 :])
            name = spread(writer, name, shape, axis, first, start)
            continue
        windows = writer.add("windows", first[:, None] + taps)
        windowed = writer.node("Gather", [name, windows], f"Windows{axis}", axis=axis)
        name = numbers.reduce(windowed, [axis + 1], f"Reduce{axis}")
    if tuple(sizes) != writer.tensors[result].shape:
        raise Missing(f"its windows turn its data into {sizes}, not into its result")
    writer.write(result, numbers.back(numbers.combine(start, name)))


def _reduce_stablehlo(writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_REDUCE, which reduces whole axes, beginning with a start value."""
    if len(operator.inputs) != 2:
        raise Missing(f"it reduces {len(operator.inputs) // 2} tensors at once")
    data, result = input_index(operator, 0), output(operator)
    rank = len(writer.tensors[data].shape)
    dimensions = operator.options.get("Dimensions", ())
    axes = [int(axis) for axis in dimensions] if isinstance(dimensions, tuple) else []
    if len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
        raise Missing(f"it reduces the axes {axes} of {rank} dimensions")
    function = combiner(writer, operator, "BodySubgraphIndex")
    if function == "second":
        raise Missing("it keeps one of its elements")
    numbers = _Numbers(writer, operator, function)
    name, start = (
        numbers.converted_name(data, "Data"),
        numbers.converted_name(input_index(operator, 1), "Start"),
    )
    if axes:
        name = numbers.reduce(name, axes, "Reduce")
    writer.write(result, numbers.back(numbers.combine(start, name)))


class _Numbers:
    """Writes a reduction in an element type for which onnxruntime supports the reduction.

    Args:
        writer: writer of the graph.
        operator: the operator.
        function: name of the combining function, a key of `REDUCERS`.
    """

    def __init__(self, writer: Writer, operator: TfliteOperator, function: str) -> None:
        self._writer = writer
        self._reduction, self._operation = REDUCERS[function]
        self._is_logical = function in ("all", "any")
        self._target = writer.computed_type(output(operator))
        if self._is_logical:
            self._dtype = "int32"
        elif self._target in REDUCIBLE:
            self._dtype = self._target
        else:
            self._dtype = "float32" if self._target == "float16" else "int64"

    def converted_name(self, place: int, suffix: str) -> str:
        """Return the name of a tensor, converted to the element type of the reduction.

        Args:
            place: index of the tensor in the file's graph.
            suffix: suffix of the name of the Cast node.
        """
        name = self._writer.real(place)
        if self._is_logical and self._target != "bool":
            name = cast(self._writer, name, "bool", f"{suffix}Bool")
        if self._is_logical or self._dtype != self._target:
            name = cast(self._writer, name, self._dtype, f"{suffix}Cast")
        return name

    def reduce(self, name: str, axes: Sequence[int], suffix: str) -> str:
        """Add the reduction of a tensor over some axes, which are removed.

        Args:
            name: name of the tensor, in the element type of the reduction.
            axes: the axes.
            suffix: suffix of the node's name.

        Returns:
            The name of the result.
        """
        return reduce_axes(self._writer, self._reduction, name, axes, keep=False, suffix=suffix)

    def combine(self, start: str, name: str) -> str:
        """Add a node that combines the start value of a reduction with the reduced elements.

        Args:
            start: name of the start value.
            name: name of the reduced elements.

        Returns:
            The name of the result.
        """
        suffix = "Combine" if self._dtype != self._target else ""
        return self._writer.node(self._operation, [start, name], suffix)

    def back(self, name: str) -> str:
        """Convert a result to the element type of the operator's output.

        Args:
            name: name of the result.

        Returns:
            The name of the converted result.
        """
        return name if self._dtype == self._target else cast(self._writer, name, self._target, "")


WINDOW_RULES: Mapping[str, Rule] = {
    "DILATE": _dilate,
    "REDUCE_WINDOW": _reduce_windows,
    "STABLEHLO_REDUCE_WINDOW": _reduce_windows_stablehlo,
    "STABLEHLO_REDUCE": _reduce_stablehlo,
}
"""Conversion rules of dilation and window reductions, by the operator's name in the schema."""

RULES: Mapping[str, Rule] = {**IMAGE_RULES, **WINDOW_RULES}
"""Conversion rule of each operator of this module, by its name in the schema."""
