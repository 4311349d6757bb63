"""Generates random operators in all forms that models use, with sizes and values by hypothesis.

Each generator function covers the operators that take the same kinds of inputs. The element types
are those that both the operator's ONNX definition allows and models compute in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import onnx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]
OPSETS = range(7, 25)
NEWEST_OPSET = 26
FLOATS = ("float32", "float64")
TYPES = ("float32", "int64", "int32", "bool", "int8", "uint8", "float64")
USUAL_RANKS = range(1, 5)
"""Ranks that are drawn for element types in which networks rarely compute."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """An ONNX operator with its input arrays; None for an input that is left out.

    Inputs at the positions in `constant` become initializers. `outputs` has a character per output:
    1 if the output exists, 0 if it is left out.
    """

    operator: str
    domain: str
    opset: int
    attributes: tuple[onnx.AttributeProto, ...]
    inputs: tuple[Array | None, ...]
    constant: frozenset[int]
    outputs: str

    def model(self, prefix: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """Return a model with this operator, and its inputs by name.

        Names of tensors begin with `prefix`, so that several models can be joined.
        """
        names = ["" if a is None else f"{prefix}.x{i}" for i, a in enumerate(self.inputs)]
        outputs = [f"{prefix}.y{i}" * int(there) for i, there in enumerate(self.outputs)]
        node = helper.make_node(
            self.operator, names, outputs, name=f"{prefix}.{self.operator}", domain=self.domain
        )
        node.attribute.extend(self.attributes)
        given_at = {n: a for n, a in zip(names, self.inputs, strict=True) if a is not None}
        fixed = {names[place] for place in self.constant if place < len(names)}
        data = {name: array for name, array in given_at.items() if name not in fixed}
        graph = helper.make_graph(
            [node], "form",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in data.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in outputs if name],
            [numpy_helper.from_array(given_at[n], n) for n in given_at if n in fixed],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), data


class Draw:
    """Random sizes and tensors for one operator at one opset."""

    def __init__(self, draw: Callable[..., Any], operator: str, opset: int) -> None:
        self._draw = draw
        self.operator, self.opset = operator, opset
        self._rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.schema = onnx.defs.get_schema(operator, opset)

    def size(self, least: int = 1, most: int = 5) -> int:
        """Return a random size from `least` to `most`, inclusive."""
        return int(self._draw(st.integers(least, most)))

    def shape(self, rank: int, least: int = 1) -> tuple[int, ...]:
        """Return a random shape with `rank` dimensions."""
        return tuple(self.size(least) for _ in range(rank))

    def array(self, dtype: str, shape: Sequence[int], low: int = -5, high: int = 6) -> Array:
        """Return an array of random values. Integers are at least `low` and less than `high`."""
        if dtype == "bool":
            return self._rng.integers(0, 2, shape).astype(bool)
        if dtype.startswith("float"):
            return np.asarray(self._rng.standard_normal(shape) * 3).astype(dtype)
        return self._rng.integers(
            max(low, 0 if dtype.startswith("u") else low), high, shape
        ).astype(dtype)

    def kinds(self, ranks: range, place: int = 0) -> Iterator[tuple[str, int]]:
        """Yield pairs of an element type and a rank that the operator allows for an input.

        `place` is the index of the input.
        """
        for dtype in self.types(place):
            for rank in ranks:
                if dtype in ("float32", "int64") or rank in USUAL_RANKS:
                    yield dtype, rank

    def types(self, place: int = 0, among: Sequence[str] = TYPES) -> list[str]:
        """Return the element types in `among` that the operator's definition allows for an input.

        `place` is the index of the input.
        """
        label = self.schema.inputs[min(place, len(self.schema.inputs) - 1)]
        allowed = {type_.removeprefix("tensor(").removesuffix(")") for type_ in label.types}
        names = {"float32": "float", "float64": "double"}
        return [name for name in among if names.get(name, name) in allowed]

    def has(self, attribute: str) -> bool:
        """Return whether the operator's definition has an attribute."""
        return attribute in self.schema.attributes

    def sketch(
        self,
        *inputs: Array | None,
        constant: Collection[int] = (),
        outputs: str = "1",
        **attributes: Any,
    ) -> Sketch:
        """Return a sketch of the operator. Attributes that are None are left out."""
        made = tuple(
            helper.make_attribute(name, value)
            for name, value in attributes.items()
            if value is not None
        )
        return Sketch(self.operator, "", self.opset, made, inputs, frozenset(constant), outputs)


Family = Callable[[Draw], Iterator[Sketch]]


def unary(d: Draw) -> Iterator[Sketch]:
    """Yield unary operators on tensors of any rank, with and without their numeric attributes."""
    optional = {
        "Celu": ["alpha"], "Elu": ["alpha"], "LeakyRelu": ["alpha"], "ThresholdedRelu": ["alpha"],
        "HardSigmoid": ["alpha", "beta"], "Selu": ["alpha", "gamma"], "Gelu": ["approximate"],
    }.get(d.operator, [])  # fmt: skip
    for dtype, rank in d.kinds(range(6)):
        array = d.array(dtype, d.shape(rank))
        if d.operator in ("Acosh",):
            array = 1 + np.abs(array)
        elif d.operator in ("Sqrt", "Log"):
            array = np.abs(array) + array.dtype.type(0.1)
        elif d.operator in ("Acos", "Asin", "Atanh"):
            array = np.clip(array / 10, -0.9, 0.9).astype(dtype)
        yield d.sketch(array)
        if optional:
            values: dict[str, Any] = {
                name: "tanh" if name == "approximate" else 0.3 for name in optional
            }
            yield d.sketch(array, **values)


def binary(d: Draw) -> Iterator[Sketch]:
    """Yield binary operators on two tensors that are broadcast."""
    kinds = d.types()
    for dtype in kinds:
        full = {"float32": 6, "int64": 4}.get(dtype, 0)
        for left, right in product(range(6), range(6)):
            usual = left in USUAL_RANKS and right in (0, left)
            if not (usual or max(left, right) < full):
                continue
            whole = d.shape(max(left, right))
            a, b = whole[len(whole) - left :], whole[len(whole) - right :]
            b = tuple(1 if d.size(0, 2) == 0 else size for size in b)
            second = d.array(dtype, b)
            if d.operator in ("Div", "Mod") and not dtype.startswith("float"):
                second = np.where(second == 0, second + 1, second).astype(dtype)
            first = d.array(dtype, a)
            if d.operator == "Pow":
                first, second = np.abs(first) + first.dtype.type(1), d.array(dtype, b, 0, 3)
            if d.operator == "PRelu" and left < right:
                continue
            variants: list[dict[str, Any]] = [{}]
            if d.operator == "Mod":
                variants = [{"fmod": 1}] if dtype.startswith("float") else [{}, {"fmod": 1}]
            if d.operator == "BitShift":
                second = np.asarray(second % 4)
                variants = [{"direction": "LEFT"}, {"direction": "RIGHT"}]
            for variant in variants:
                yield d.sketch(first, second, **variant)


def variadic(d: Draw) -> Iterator[Sketch]:
    """Yield operators with any number of inputs."""
    for dtype, rank in d.kinds(range(6)):
        shape = d.shape(rank)
        for count in (1, 2, 3):
            yield d.sketch(*(d.array(dtype, shape) for _ in range(count)))
        yield d.sketch(d.array(dtype, shape), d.array(dtype, ()))


def clip(d: Draw) -> Iterator[Sketch]:
    """Yield Clip with bounds that are attributes, constants or computed tensors."""
    for dtype, rank in d.kinds(range(6)):
        x = d.array(dtype, d.shape(rank))
        if d.opset < 11:
            yield d.sketch(x)
            yield d.sketch(x, min=-1.0, max=1.5)
            yield d.sketch(x, min=0.0)
            yield d.sketch(x, max=6.0)
            continue
        low, high = np.asarray(1, dtype), np.asarray(3, dtype)
        for inputs in ((x, low, high), (x, low), (x, None, high)):
            yield d.sketch(*inputs, constant=(1, 2))
            yield d.sketch(*inputs)
        for constant in ((1,), (2,), (1, 2)):
            yield d.sketch(x, high, low, constant=constant)  # bounds that cross


def draw_where(d: Draw) -> Iterator[Sketch]:
    """Yield Where with operands of different ranks."""
    for dtype in d.types(1):
        for ranks in product(range(5), repeat=3):
            if dtype != "float32" and len(set(ranks)) > 1:
                continue
            whole = d.shape(max(ranks))
            shapes = [whole[len(whole) - rank :] for rank in ranks]
            yield d.sketch(
                d.array("bool", shapes[0]), d.array(dtype, shapes[1]), d.array(dtype, shapes[2])
            )


def cast(d: Draw) -> Iterator[Sketch]:
    """Yield Cast between all pairs of types."""
    for dtype, to, rank in product(d.types(), TYPES, range(5)):
        array = d.array(dtype, d.shape(rank), 0)
        if to.startswith("u") and dtype.startswith("float"):
            array = np.abs(array)  # the standard leaves negative numbers open
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(to))
        yield d.sketch(array, to=kind)


def reduction(d: Draw) -> Iterator[Sketch]:
    """Yield reductions over no axes, some axes, and axes that are counted from the end."""
    as_input = len(d.schema.inputs) > 1
    for dtype, rank in product(
        d.types(among=("float32", "float64", "int64", "int32")), range(1, 6)
    ):
        x = d.array(dtype, d.shape(rank))
        if d.operator == "ReduceLogSum":
            x = np.abs(x) + x.dtype.type(1)
        some = sorted({d.size(0, rank - 1), d.size(0, rank - 1)})
        for axes, keep in product((None, some, [axis - rank for axis in some]), (None, 0)):
            if not as_input:
                yield d.sketch(x, axes=axes, keepdims=keep)
            elif axes is None:
                yield d.sketch(x, keepdims=keep)
                yield d.sketch(x, keepdims=keep, noop_with_empty_axes=1)
            else:
                yield d.sketch(x, np.array(axes), constant=(1,), keepdims=keep)


def arg_reduction(d: Draw) -> Iterator[Sketch]:
    """Yield ArgMax and ArgMin."""
    for dtype, rank in product(d.types(among=("float32", "int32")), range(1, 5)):
        x = d.array(dtype, d.shape(rank), -50, 50)
        for axis, keep in product((None, d.size(0, rank - 1), -1), (None, 0)):
            yield d.sketch(x, axis=axis, keepdims=keep)
            if d.has("select_last_index"):
                yield d.sketch(x, axis=axis, keepdims=keep, select_last_index=1)


def along_axis(d: Draw) -> Iterator[Sketch]:
    """Yield Softmax and similar operators that have an axis."""
    for dtype, rank in product(d.types(among=FLOATS), range(1, 6)):
        x = d.array(dtype, d.shape(rank))
        for axis in (None, d.size(0, rank - 1), -1):
            yield d.sketch(x, axis=axis)
            if d.operator == "LpNormalization":
                yield d.sketch(x, axis=axis, p=1)


def cumulative(d: Draw) -> Iterator[Sketch]:
    """Yield CumSum in both directions."""
    for dtype, rank in product(
        d.types(among=("float32", "float64", "int32", "int64")), range(1, 5)
    ):
        x = d.array(dtype, d.shape(rank))
        for axis, exclusive, backwards in product((0, rank - 1, -1), (None, 1), (None, 1)):
            yield d.sketch(x, np.array(axis), constant=(1,), exclusive=exclusive, reverse=backwards)


def draw_reshape(d: Draw) -> Iterator[Sketch]:
    """Yield Reshape from each rank to each rank."""
    for dtype, rank, to in product(d.types(), range(6), range(1, 6)):
        shape = d.shape(rank)
        sizes = list(shape[: to - 1]) + [1] * max(0, to - 1 - rank) + [-1]
        x = d.array(dtype, shape)
        yield d.sketch(x, np.array(sizes), constant=(1,))
        if 0 < to - 1 <= rank and dtype == "float32":
            yield d.sketch(x, np.array([0] * (to - 1) + [-1]), constant=(1,))
    if d.has("allowzero"):
        x = d.array("float32", (2, 3))
        yield d.sketch(x, np.array([3, 2]), constant=(1,), allowzero=1)


def draw_flatten(d: Draw) -> Iterator[Sketch]:
    """Yield Flatten."""
    for dtype, rank in d.kinds(range(1, 6)):
        for axis in (None, d.size(0, rank), -1):
            yield d.sketch(d.array(dtype, d.shape(rank)), axis=axis)


def draw_squeeze(d: Draw) -> Iterator[Sketch]:
    """Yield Squeeze and Unsqueeze."""
    grows = d.operator == "Unsqueeze"
    for dtype, rank in d.kinds(range(1, 6)):
        shape = list(d.shape(rank, 2))
        places = sorted({d.size(0, rank - 1), 0})
        for axes in (places, [place - rank for place in places]):
            if grows:
                matching = tuple(size for i, size in enumerate(shape) if i not in places)
                x = d.array(dtype, matching)
            else:
                x = d.array(dtype, [1 if i in places else size for i, size in enumerate(shape)])
            if d.opset < 13:
                yield d.sketch(x, axes=axes)
            else:
                yield d.sketch(x, np.array(axes), constant=(1,))
        if not grows:
            yield d.sketch(d.array(dtype, [1 if i in places else s for i, s in enumerate(shape)]))


def transposed(d: Draw) -> Iterator[Sketch]:
    """Yield Transpose with several orders of axes."""
    for dtype, rank in d.kinds(range(1, 7)):
        x = d.array(dtype, d.shape(rank))
        yield d.sketch(x)
        order = [*range(1, rank), 0]
        yield d.sketch(x, perm=order)
        yield d.sketch(x, perm=[*order[::-1][1:], order[-1]])


def draw_expand(d: Draw) -> Iterator[Sketch]:
    """Yield Expand."""
    for dtype, rank, to in product(d.types(), range(5), range(1, 6)):
        whole = d.shape(max(rank, to))
        matching = tuple(1 if d.size(0, 1) else size for size in whole[len(whole) - rank :])
        sizes = whole[len(whole) - to :]
        yield d.sketch(d.array(dtype, matching), np.array(sizes), constant=(1,))


def draw_tile(d: Draw) -> Iterator[Sketch]:
    """Yield Tile."""
    for dtype, rank in d.kinds(range(1, 5)):
        repeats = [d.size(1, 3) for _ in range(rank)]
        yield d.sketch(d.array(dtype, d.shape(rank)), np.array(repeats), constant=(1,))


def draw_concat(d: Draw) -> Iterator[Sketch]:
    """Yield Concat of one to three tensors."""
    for dtype, rank in d.kinds(range(1, 6)):
        for axis in (d.size(0, rank - 1), -1):
            shape = list(d.shape(rank))
            arrays = []
            for _ in range(3):
                shape[axis] = d.size()
                arrays.append(d.array(dtype, shape))
            for count in (1, 2, 3):
                yield d.sketch(*arrays[:count], axis=axis)


def draw_split(d: Draw) -> Iterator[Sketch]:
    """Yield Split into equal and unequal parts."""
    for dtype, rank in d.kinds(range(1, 6)):
        for axis in (None, d.size(0, rank - 1), -1):
            shape = list(d.shape(rank))
            sizes = [d.size(), d.size(), d.size()]
            shape[axis or 0] = sum(sizes)
            x = d.array(dtype, shape)
            if d.opset < 13:
                yield d.sketch(x, axis=axis, split=sizes, outputs="111")
            else:
                yield d.sketch(x, np.array(sizes), constant=(1,), axis=axis, outputs="111")
                yield d.sketch(x, np.array([sum(sizes)]), constant=(1,), axis=axis)
            shape[axis or 0] = 6
            even = d.array(dtype, shape)
            for count in (2, 3):
                if d.opset < 18:
                    yield d.sketch(even, axis=axis, outputs="1" * count)
                else:
                    yield d.sketch(even, axis=axis, num_outputs=count, outputs="1" * count)
            if d.opset >= 18:
                shape[axis or 0] = 7
                yield d.sketch(d.array(dtype, shape), axis=axis, num_outputs=2, outputs="11")


def draw_slice(d: Draw) -> Iterator[Sketch]:
    """Yield Slice with positive and negative steps, and with ends beyond the tensor."""
    for dtype, rank in d.kinds(range(1, 6)):
        shape = d.shape(rank, 3)
        x = d.array(dtype, shape)
        axes = sorted({0, rank - 1})
        starts, ends = [1 for _ in axes], [shape[axis] - d.size(0, 1) for axis in axes]
        far = [2**31 - 1 for _ in axes]
        if d.opset < 10:
            yield d.sketch(x, starts=starts, ends=ends, axes=axes)
            yield d.sketch(x, starts=[-2 for _ in axes], ends=far, axes=axes)
            yield d.sketch(x, starts=[0] * rank, ends=[2] * rank)
            continue
        numbers = [np.array(item) for item in (starts, ends, axes)]
        yield d.sketch(x, *numbers, constant=range(1, 5))
        if dtype == "float32":
            small = [number.astype(np.int32) for number in numbers]
            yield d.sketch(x, *small, constant=range(1, 5))
            yield d.sketch(x, *small, np.ones(len(axes), np.int32), constant=range(1, 5))
        yield d.sketch(x, np.array([0] * rank), np.array([2] * rank), constant=range(1, 5))
        yield d.sketch(
            x, np.array([-2 for _ in axes]), np.array(far), np.array([a - rank for a in axes]),
            np.array([1 for _ in axes]), constant=range(1, 5),
        )  # fmt: skip
        yield d.sketch(
            x, np.array([0 for _ in axes]), np.array(far), np.array(axes),
            np.array([2 for _ in axes]), constant=range(1, 5),
        )  # fmt: skip
        yield d.sketch(
            x, np.array([-1 for _ in axes]), np.array([-(2**31) for _ in axes]), np.array(axes),
            np.array([-1 for _ in axes]), constant=range(1, 5),
        )  # fmt: skip


def draw_gather(d: Draw) -> Iterator[Sketch]:
    """Yield Gather with indices of several ranks, constant or computed."""
    for dtype, rank, places, kind in product(d.types(), range(1, 5), range(4), ("int64", "int32")):
        if kind == "int32" and dtype != "float32":
            continue
        for axis in (None, d.size(0, rank - 1), -1):
            shape = d.shape(rank, 2)
            length = shape[axis or 0]
            index = d.array(kind, d.shape(places), -length, length)
            x = d.array(dtype, shape)
            yield d.sketch(x, index, axis=axis)
            yield d.sketch(x, index, axis=axis, constant=(1,))
            yield d.sketch(x, index, axis=axis, constant=(0,))


def gathered_elements(d: Draw) -> Iterator[Sketch]:
    """Yield GatherElements."""
    for dtype, rank in d.kinds(range(1, 5)):
        for axis in (None, d.size(0, rank - 1), -1):
            shape = d.shape(rank, 2)
            length = shape[axis or 0]
            index = d.array("int64", shape, -length, length)
            yield d.sketch(d.array(dtype, shape), index, axis=axis)


def draw_pad(d: Draw) -> Iterator[Sketch]:
    """Yield Pad in all modes."""
    modes = [None, "reflect", "edge"] + (["wrap"] if d.opset >= 19 else [])
    for dtype, rank, mode in product(d.types(), range(1, 6), modes):
        x = d.array(dtype, d.shape(rank, 3))
        amounts = [d.size(0, 2) for _ in range(2 * rank)]
        if d.opset < 11:
            yield d.sketch(x, pads=amounts, mode=mode)
            yield d.sketch(x, pads=amounts, mode=mode, value=1.5)
            continue
        yield d.sketch(x, np.array(amounts), constant=(1, 2, 3), mode=mode)
        if mode is None:
            yield d.sketch(x, np.array(amounts), np.asarray(2, dtype), constant=(1, 2, 3))
            fewer = [-1 if d.size(0, 1) else 1 for _ in range(2 * rank)]
            yield d.sketch(x, np.array(fewer), constant=(1, 2, 3))


def blocks(d: Draw) -> Iterator[Sketch]:
    """Yield DepthToSpace and SpaceToDepth."""
    for dtype in d.types():
        n, c, h, w = d.shape(4)
        modes = [None] if d.operator == "SpaceToDepth" or d.opset < 11 else [None, "CRD"]
        for mode in modes:
            shape = (n, c * 4, h, w) if d.operator == "DepthToSpace" else (n, c, h * 2, w * 2)
            yield d.sketch(d.array(dtype, shape), blocksize=2, mode=mode)


def one_hot(d: Draw) -> Iterator[Sketch]:
    """Yield OneHot."""
    for kind, to, rank in product(("int64", "int32"), ("float32", "int64"), range(1, 4)):
        index = d.array(kind, d.shape(rank), 0, 4)
        for axis in (None, 0):
            yield d.sketch(index, np.array(5), np.array([0, 1], to), constant=(1, 2), axis=axis)


def largest(d: Draw) -> Iterator[Sketch]:
    """Yield TopK with one or both of its outputs."""
    for dtype, rank in product(d.types(among=("float32", "int64", "int32")), range(1, 5)):
        shape = d.shape(rank, 3)
        x = d.array(dtype, shape)
        if dtype.startswith("int"):
            count = int(np.prod(shape))
            x = np.random.default_rng(count).permutation(count).reshape(shape).astype(dtype)
        for axis, least in product((None, 0, -1), (None, 0)):
            for outputs in ("1", "11", "01"):
                if d.opset < 10:
                    yield d.sketch(x, k=2, axis=axis, outputs=outputs)
                else:
                    yield d.sketch(
                        x, np.array([2]), constant=(1,), axis=axis, largest=least, outputs=outputs
                    )


def triangular(d: Draw) -> Iterator[Sketch]:
    """Yield Trilu."""
    for dtype, rank, upper in product(d.types(), range(2, 5), (None, 0)):
        x = d.array(dtype, d.shape(rank))
        yield d.sketch(x, upper=upper)
        for k in (-1, 0, 1):
            yield d.sketch(x, np.array(k), constant=(1,), upper=upper)


def draw_convolution(d: Draw) -> Iterator[Sketch]:
    """Yield convolutions with and without bias, padding, strides, dilations and groups."""
    transposes = d.operator == "ConvTranspose"
    for rank in (1, 2, 3):
        for options in product((False, True), repeat=6):
            bare, grouped, padded_, strided, dilated, biased = options
            has_kernel = not bare
            if bare and (grouped or dilated):
                continue
            groups = d.size(2, 3) if grouped else 1
            channels, filters = groups * d.size(1, 3), groups * d.size(1, 3)
            if grouped and d.size(0, 1):
                channels = filters = groups  # a depthwise convolution
            kernel = [d.size(1, 3) for _ in range(rank)]
            image = [d.size(6, 8) for _ in range(rank)]
            pads = [d.size(0, 1) for _ in range(2 * rank)]
            x = d.array("float32", (d.size(1, 2), channels, *image))
            shape = (channels, filters // groups) if transposes else (filters, channels // groups)
            w, b = d.array("float32", (*shape, *kernel)), d.array("float32", (filters,))
            attributes: dict[str, Any] = {
                "kernel_shape": kernel if has_kernel else None,
                "group": groups if grouped else None,
                "pads": pads if padded_ else None,
                "strides": [d.size(1, 2) for _ in range(rank - 1)] + [2] if strided else None,
                "dilations": [d.size(1, 2) for _ in range(rank - 1)] + [2] if dilated else None,
            }
            inputs = (x, w, b) if biased else (x, w)
            yield d.sketch(*inputs, constant=(1, 2), **attributes)
            if not padded_:
                for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
                    yield d.sketch(*inputs, constant=(1, 2), auto_pad=mode, **attributes)
            if transposes and strided:
                extra = [0] * (rank - 1) + [1]
                yield d.sketch(*inputs, constant=(1, 2), output_padding=extra, **attributes)
        x, w = d.array("float32", (1, 2, *[6] * rank)), d.array("float32", (2, 2, *[3] * rank))
        yield d.sketch(x, w)
        yield d.sketch(x, w, kernel_shape=[3] * rank, pads=[1] * 2 * rank)


def draw_pool(d: Draw) -> Iterator[Sketch]:
    """Yield pools with all combinations of their options."""
    dilates = d.has("dilations")
    for dtype, rank in product(d.types(among=("float32", "int8", "uint8")), (1, 2, 3)):
        for options in product((False, True), repeat=5):
            padded_, strided, ceiled, counted, dilated = options
            if (ceiled and not d.has("ceil_mode")) or (dilated and not dilates):
                continue
            if counted and not d.has("count_include_pad"):
                continue
            x = d.array(dtype, (d.size(1, 2), d.size(1, 3), *[d.size(6, 9) for _ in range(rank)]))
            attributes: dict[str, Any] = {
                "kernel_shape": [d.size(2, 3) for _ in range(rank)],
                "pads": [1] * 2 * rank if padded_ else None,
                "strides": [d.size(1, 3) for _ in range(rank - 1)] + [2] if strided else None,
                "ceil_mode": 1 if ceiled else None,
                "count_include_pad": 1 if counted else None,
                "dilations": [2] * rank if dilated else None,
            }
            yield d.sketch(x, **attributes)
            if not padded_:
                for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
                    yield d.sketch(x, auto_pad=mode, **attributes)


def pooled_whole(d: Draw) -> Iterator[Sketch]:
    """Yield global pools."""
    for dtype, rank in product(d.types(among=FLOATS), (3, 4, 5)):
        yield d.sketch(d.array(dtype, d.shape(rank)))


def normalised_batch(d: Draw) -> Iterator[Sketch]:
    """Yield BatchNormalization."""
    for rank, given_ in product((2, 3, 4, 5), (None, 1e-3)):
        x = d.array("float32", d.shape(rank))
        per = [d.array("float32", (x.shape[1],)) for _ in range(3)]
        variance = np.abs(d.array("float32", (x.shape[1],))) + np.float32(0.1)
        yield d.sketch(x, *per, variance, constant=(1, 2, 3, 4), epsilon=given_)
        yield d.sketch(x, *per, variance, constant=(1, 2, 3, 4), epsilon=given_, momentum=0.99)


def normalised_instance(d: Draw) -> Iterator[Sketch]:
    """Yield InstanceNormalization."""
    for rank, given_ in product((3, 4, 5), (None, 1e-3)):
        x = d.array("float32", (*d.shape(2), *[4] * (rank - 2)))
        scale, bias = (d.array("float32", (x.shape[1],)) for _ in range(2))
        yield d.sketch(x, scale, bias, epsilon=given_)


def normalised_layer(d: Draw) -> Iterator[Sketch]:
    """Yield LayerNormalization and RMSNormalization."""
    for rank, given_, biased in product((2, 3, 4), (None, 1e-3), (False, True)):
        for axis in (None, 1, -1):
            x = d.array("float32", d.shape(rank, 2))
            own = x.shape[-1 if axis is None else axis :]
            scale, bias = (d.array("float32", own) for _ in range(2))
            yield d.sketch(x, *((scale, bias) if biased else (scale,)), axis=axis, epsilon=given_)


def normalised_group(d: Draw) -> Iterator[Sketch]:
    """Yield GroupNormalization."""
    for rank, given_ in product((3, 4), (None, 1e-3)):
        x = d.array("float32", (1, 4, *[4] * (rank - 2)))
        per = (4 if d.opset >= 21 else 2,)
        yield d.sketch(
            x, d.array("float32", per), d.array("float32", per), num_groups=2, epsilon=given_
        )


def local_response(d: Draw) -> Iterator[Sketch]:
    """Yield LRN."""
    x = d.array("float32", (1, 7, 4, 4))
    yield d.sketch(x, size=3)
    yield d.sketch(x, size=5, alpha=0.01, beta=0.5, bias=2.0)
    yield d.sketch(x, size=5, alpha=0.01, beta=0.5)


def draw_matmul(d: Draw) -> Iterator[Sketch]:
    """Yield MatMul with operands of all ranks, constant or computed."""
    for left, right in product(range(1, 6), range(1, 6)):
        n, k, m = d.shape(3)
        front = d.shape(3)
        a = (*front[len(front) - max(left - 2, 0) :], n, k)[-max(left, 1) :] if left > 1 else (k,)
        b = (
            (*front[len(front) - max(right - 2, 0) :], k, m)[-max(right, 1) :]
            if right > 1
            else (k,)
        )
        arrays = d.array("float32", a), d.array("float32", b)
        for constant in ((), (0,), (1,)):
            yield d.sketch(*arrays, constant=constant)


def general_product(d: Draw) -> Iterator[Sketch]:
    """Yield Gemm."""
    for options in product((None, 1), (None, 1), (None, 0.5), (None, 0.25), (0, 1, 2)):
        left, right, alpha, beta, bias = options
        n, k, m = d.shape(3)
        a = d.array("float32", (k, n) if left else (n, k))
        b = d.array("float32", (m, k) if right else (k, m))
        inputs: list[Array] = [a, b]
        if bias:
            inputs.append(d.array("float32", (m,) if bias == 1 else (n, m)))
        elif d.opset < 11:
            continue
        attributes: dict[str, Any] = {"transA": left, "transB": right, "alpha": alpha, "beta": beta}
        yield d.sketch(*inputs, **attributes)
        yield d.sketch(*inputs, constant=(1, 2), **attributes)


def draw_einsum(d: Draw) -> Iterator[Sketch]:
    """Yield Einsum."""
    a, b, c = d.shape(3)
    for text, shapes in {
        "ij,jk->ik": ((a, b), (b, c)),
        "bij,bjk->bik": ((2, a, b), (2, b, c)),
        "bhid,bhjd->bhij": ((2, 2, a, b), (2, 2, c, b)),
        "bchw,bkc->bkhw": ((2, a, b, c), (2, 3, a)),
        "bij,bj->bi": ((2, a, b), (2, b)),
        "i,j->ij": ((a,), (b,)),
        "ij->ji": ((a, b),),
        "ij->i": ((a, b),),
        "bij,jk->bik": ((2, a, b), (b, c)),
        "bhwc,hkc->bhwk": ((2, a, 3, c), (a, 2, c)),
        "bhwc,wkc->bhwk": ((2, 3, a, c), (a, 2, c)),
    }.items():
        yield d.sketch(*(d.array("float32", shape) for shape in shapes), equation=text)


def draw_quantise(d: Draw) -> Iterator[Sketch]:
    """Yield QuantizeLinear and DequantizeLinear with a single scale and with one per channel."""
    back = d.operator == "DequantizeLinear"
    for kind, rank in product(("int8", "uint8", *(("int32",) if back else ())), range(1, 6)):
        shape = d.shape(rank, 2)
        x = d.array(kind, shape, -100, 100) if back else d.array("float32", shape)
        scale, zero = np.asarray(0.25, np.float32), np.asarray(3 if kind != "int32" else 0, kind)
        for constants in ((1, 2), (), *(((0, 1, 2),) if back else ())):
            yield d.sketch(x, scale, zero, constant=constants)
            if kind == "uint8" or back:
                yield d.sketch(x, scale, constant=constants)
        if d.opset < 13:
            continue
        for axis in (None, 0, -1):
            place = 1 if axis is None else axis
            if rank < 2 and axis is None:
                continue
            scales = np.abs(d.array("float32", (shape[place],))) + np.float32(0.1)
            zeros = d.array(kind, (shape[place],), 0, 5) * np.asarray(kind != "int32", kind)
            for constants in ((1, 2), *(((0, 1, 2),) if back else ())):
                yield d.sketch(x, scales, zeros, constant=constants, axis=axis)
                if back:
                    yield d.sketch(x, scales, constant=constants, axis=axis)


def quantised_dynamically(d: Draw) -> Iterator[Sketch]:
    """Yield DynamicQuantizeLinear."""
    for rank in range(1, 5):
        yield d.sketch(d.array("float32", d.shape(rank, 2)), outputs="111")


def multiplied_integers(d: Draw) -> Iterator[Sketch]:
    """Yield MatMulInteger with all kinds of zero points."""
    for left, right, rank in product(("int8", "uint8"), ("int8", "uint8"), (1, 2, 3, 4)):
        n, k, m = d.shape(3)
        a = d.array(left, (k,) if rank == 1 else (*d.shape(rank - 2), n, k), -100, 100)
        b = d.array(right, (k, m), -100, 100)
        zeros = np.asarray(2, left), np.asarray(1, right)
        for zero in (d.array(right, (m,), 0, 5), d.array(right, (1,), 0, 5)):  # of each column
            for constant in ((1, 2, 3), (1, 3)):
                yield d.sketch(a, b, zeros[0], zero, constant=constant)
        places: tuple[tuple[int, ...], ...] = ((1, 2, 3), (1, 3), ())
        for place in places:
            yield d.sketch(a, b, constant=place)
            yield d.sketch(a, b, zeros[0], constant=place)
            yield d.sketch(a, b, *zeros, constant=place)
        if rank > 2:  # two activations
            batch = d.array(right, (*a.shape[:-2], k, m), -100, 100)
            for place in ((2, 3), ()):
                yield d.sketch(a, batch, constant=place)
                yield d.sketch(a, batch, zeros[0], constant=place)
                yield d.sketch(a, batch, *zeros, constant=place)


def convolved_integers(d: Draw) -> Iterator[Sketch]:
    """Yield ConvInteger."""
    for rank, right in product((1, 2), ("int8", "uint8")):
        for padded_, strided, dilated, grouped in product((False, True), repeat=4):
            groups = 2 if grouped else 1
            x = d.array("uint8", (1, 2 * groups, *[7] * rank), 0, 200)
            w = d.array(right, (3 * groups, 2, *[3] * rank), -100, 100)
            zeros = np.asarray(2, "uint8"), np.asarray(1, right)
            attributes: dict[str, Any] = {
                "pads": [1] * 2 * rank if padded_ else None,
                "strides": [2] * rank if strided else None,
                "dilations": [2] * rank if dilated else None,
                "group": groups if grouped else None,
            }
            for inputs in ((x, w), (x, w, zeros[0]), (x, w, *zeros)):
                for constant in ((1, 2, 3), (1, 3)):
                    yield d.sketch(*inputs, constant=constant, **attributes)


def recurrent(d: Draw) -> Iterator[Sketch]:
    """Yield LSTM, GRU and RNN."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[d.operator]
    for direction, biased, initial, outputs in product(
        (None, "reverse", "bidirectional"),
        (False, True),
        (False, True),
        ("1", "01", "11", "111", "001", "011"),
    ):
        if len(outputs) == 3 and gates != 4:
            continue
        directions = 2 if direction == "bidirectional" else 1
        steps, batch, size, hidden = d.size(2, 4), d.size(1, 2), d.size(2, 4), d.size(2, 4)
        inputs: list[Array | None] = [
            d.array("float32", (steps, batch, size)),
            d.array("float32", (directions, gates * hidden, size)) / 4,
            d.array("float32", (directions, gates * hidden, hidden)) / 4,
            d.array("float32", (directions, 2 * gates * hidden)) if biased else None,
            None,
        ]
        if initial:
            count = 2 if gates == 4 else 1
            inputs += [d.array("float32", (directions, batch, hidden)) for _ in range(count)]
        after = [None, 1] if d.operator == "GRU" else [None]
        for reset in after:
            for constant in ((1, 2, 3), (1, 2, 3, 5, 6)):
                yield d.sketch(
                    *inputs, constant=constant, outputs=outputs, hidden_size=hidden,
                    direction=direction, linear_before_reset=reset,
                )  # fmt: skip


def draw_resize(d: Draw) -> Iterator[Sketch]:
    """Yield Resize by integer and other factors, to larger and smaller sizes."""
    for rank, whole in product((3, 4, 5), (True, False)):
        x = d.array("float32", (1, 2, *[d.size(3, 5) for _ in range(rank - 2)]))
        factors = [1.0, 1.0]
        for _ in range(rank - 2):
            factors.append(float(d.size(1, 3)) if whole else d.size(4, 17) / 7)
        scales = np.array(factors, np.float32)
        sizes = np.array([int(size * f) for size, f in zip(x.shape, factors, strict=True)])
        if d.opset < 11:
            for mode in ("nearest", "linear"):
                yield d.sketch(x, scales, constant=(1,), mode=mode)
            continue
        for mode, where_, nearest in product(
            ("nearest", "linear", "cubic"),
            (None, "asymmetric", "align_corners", "pytorch_half_pixel"),
            (None, "floor", "ceil", "round_prefer_ceil"),
        ):
            if nearest and mode != "nearest":
                continue
            attributes: dict[str, Any] = {
                "mode": mode, "coordinate_transformation_mode": where_, "nearest_mode": nearest,
            }  # fmt: skip
            empty = np.zeros(0, np.float32)
            rois = (empty,) if d.opset < 13 else (None, empty)
            for roi in rois:
                yield d.sketch(x, roi, scales, constant=(1, 2, 3), **attributes)
                yield d.sketch(
                    x, roi, empty if d.opset < 13 else None, sizes, constant=(1, 2, 3), **attributes
                )
            if mode == "cubic":
                yield d.sketch(
                    x, rois[0], scales, constant=(1, 2, 3), cubic_coeff_a=-0.5, **attributes
                )


def draw_upsample(d: Draw) -> Iterator[Sketch]:
    """Yield Resize and Upsample."""
    x = d.array("float32", (1, 2, 4, 5))
    for mode in ("nearest", "linear"):
        if d.opset < 9:
            yield d.sketch(x, mode=mode, scales=[1.0, 1.0, 2.0, 3.0])
        else:
            scales = np.array([1.0, 1.0, 2.0, 3.0], np.float32)
            yield d.sketch(x, scales, constant=(1,), mode=mode)


FAMILIES: dict[Family, str] = {
    unary: "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor "
    "Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu "
    "Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu",
    binary: "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual "
    "Less LessOrEqual Mod Mul Or PRelu Pow Sub Xor",
    variadic: "Max Mean Min Sum",
    clip: "Clip",
    draw_where: "Where",
    cast: "Cast",
    reduction: "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
    "ReduceProd ReduceSum ReduceSumSquare",
    arg_reduction: "ArgMax ArgMin",
    along_axis: "Hardmax LogSoftmax LpNormalization Softmax",
    cumulative: "CumSum",
    draw_reshape: "Reshape",
    draw_flatten: "Flatten",
    draw_squeeze: "Squeeze Unsqueeze",
    transposed: "Transpose",
    draw_expand: "Expand",
    draw_tile: "Tile",
    draw_concat: "Concat",
    draw_split: "Split",
    draw_slice: "Slice",
    draw_gather: "Gather",
    gathered_elements: "GatherElements",
    draw_pad: "Pad",
    blocks: "DepthToSpace SpaceToDepth",
    one_hot: "OneHot",
    largest: "TopK",
    triangular: "Trilu",
    draw_convolution: "Conv ConvTranspose",
    draw_pool: "AveragePool LpPool MaxPool",
    pooled_whole: "GlobalAveragePool GlobalLpPool GlobalMaxPool MeanVarianceNormalization",
    normalised_batch: "BatchNormalization",
    normalised_instance: "InstanceNormalization",
    normalised_layer: "LayerNormalization RMSNormalization",
    normalised_group: "GroupNormalization",
    local_response: "LRN",
    draw_matmul: "MatMul",
    general_product: "Gemm",
    draw_einsum: "Einsum",
    draw_quantise: "DequantizeLinear QuantizeLinear",
    quantised_dynamically: "DynamicQuantizeLinear",
    multiplied_integers: "MatMulInteger",
    convolved_integers: "ConvInteger",
    recurrent: "GRU LSTM RNN",
    draw_resize: "Resize",
    draw_upsample: "Upsample",
}


def draw_sketches(
    chosen: Collection[str], draws: int, opsets: Collection[int], types: Collection[str]
) -> Iterator[Sketch]:
    """Yield random operators of all families.

    Each operator is generated in every version that is valid in one of the opsets.

    Args:
        chosen: names of the operators; all operators if it is empty.
        draws: number of random draws per operator and version.
        opsets: the opsets.
        types: element types of the first inputs.
    """
    for family, names in FAMILIES.items():
        for operator in names.split():
            if chosen and operator not in chosen:
                continue
            for opset in _opsets(operator, opsets):
                for sketch in _draw_family(family, operator, opset, draws):
                    if str(next(a.dtype for a in sketch.inputs if a is not None)) in types:
                        yield sketch


def _opsets(operator: str, opsets: Collection[int]) -> list[int]:
    """Return, per version of an operator, the newest of the given opsets with this version."""
    newest: dict[int, int] = {}
    for opset in sorted(opsets):
        try:
            newest[int(onnx.defs.get_schema(operator, opset).since_version)] = opset
        except onnx.defs.SchemaError:  # it came later
            continue
    return list(newest.values())


def _draw_family(family: Family, operator: str, opset: int, draws: int) -> list[Sketch]:
    results: list[Sketch] = []

    @settings(
        max_examples=draws, derandomize=True, database=None, deadline=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        results.extend(family(Draw(data.draw, operator, opset)))

    collect()
    return results
