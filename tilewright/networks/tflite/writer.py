"""Write the ONNX graph of a TensorFlow Lite graph, tensor by tensor.

A quantised tensor can exist in the ONNX graph as stored integers, as dequantised values, or as
both. An image can exist in two layouts: files store images as (n, h, w, c), whereas ONNX computes
on (n, c, h, w). The writer adds a form of a tensor only when an operator reads this form. A tensor
keeps the layout in which its operator computes it, and is transposed only if another operator reads
it in the other layout. There are therefore no transpositions between two convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.core.user_text import printable
from tilewright.networks.errors import ModelFileError
from tilewright.networks.tflite.file import Shape, TfliteGraph, TfliteQuantisation
from tilewright.networks.tflite.graph import GraphBuilder

FOREIGN = "tflite"
"""Domain of operators for which there is no conversion rule. They are copied to the ONNX graph
without a conversion."""
OPSET = 17
"""Opset of a converted model, unless an operator needs a newer one."""
OPSET_16_BITS = 21
"""First opset in which DequantizeLinear accepts int16 tensors."""
OPSETS: Mapping[str, int] = {
    "BITWISE_XOR": 21, "UNSORTED_SEGMENT_MAX": 21, "UNSORTED_SEGMENT_MIN": 21,
    "STABLEHLO_SCATTER": 21, "BITCAST": 26,
}  # fmt: skip
"""Opset that a model needs if it contains an operator of this kind. The operators are converted to
BitwiseXor, to a ScatterND with a maximum or minimum, or to BitCast."""
WIDENED: Mapping[str, Mapping[str, str]] = {
    **{
        kind: {"int16": "int32", "uint16": "int32"}
        for kind in (
            "MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN", "PAD", "PADV2", "MIRROR_PAD",
            "MATRIX_DIAG", "MATRIX_SET_DIAG", "SELECT", "SELECT_V2", "STABLEHLO_MAXIMUM",
            "STABLEHLO_MINIMUM", "STABLEHLO_SELECT", "STABLEHLO_CLAMP", "STABLEHLO_PAD",
        )
    },
    "ARG_MAX": {"bool": "int32", "int16": "int32"},
    "ARG_MIN": {"bool": "int32", "int16": "int32"},
    "RESIZE_NEAREST_NEIGHBOR": {"int16": "float32"},
}  # fmt: skip
"""Substitutes for element types that onnxruntime does not support, by the kind of operator. Each
substitute can represent all values of the original type."""
IR_VERSION = 10
MAX_INNER_OPERATORS = 10_000
"""Maximum total number of operators in nested graphs."""
MAX_FILLED = 1 << 16
"""Maximum number of elements of a tensor with equal elements that is stored in the model. Larger
tensors are computed at run time."""
MAX_ELEMENTS = 1 << 24
"""Maximum number of elements of a constant that a conversion rule creates. Without this limit, a
file of a few bytes could request a constant of any size."""


class TfliteLayout(Enum):
    """Layout of an image: FILED is (n, h, w, c) as in files, FIRST is (n, c, h, w) as in ONNX.

    The value of a member is the permutation that converts an image from the other layout to this
    layout.
    """

    FILED = (0, 2, 3, 1)
    FIRST = (0, 3, 1, 2)

    def permute_shape(self, shape: Sequence[int]) -> Shape:
        """Convert a shape in the file to this layout. Only shapes with four axes change."""
        if self is TfliteLayout.FILED or len(shape) != 4:
            return tuple(shape)
        return tuple(shape[axis] for axis in self.value)

    def axis(self, axis: int, rank: int) -> int:
        """Convert an axis of a tensor in the file to the corresponding axis in this layout.

        Args:
            axis: the axis, which may be negative.
            rank: number of dimensions of the tensor.
        """
        axis %= rank
        return self.value.index(axis) if self is TfliteLayout.FIRST and rank == 4 else axis


FILED, FIRST = TfliteLayout.FILED, TfliteLayout.FIRST


class Missing(Exception):
    """Raised if an operator cannot be expressed in ONNX. The message states the reason."""


def check_elements(count: int) -> None:
    """Check that a constant is not too large to be created.

    Args:
        count: number of its elements.

    Raises:
        Missing: it is too large.
    """
    if count > MAX_ELEMENTS:
        raise Missing(f"it has {count} positions, but at most {MAX_ELEMENTS} can be listed")


class OperatorBudget:
    """Limit on the total number of operators in graphs that other operators execute.

    Without this limit, a file of a few kilobytes whose graphs execute each other could expand to
    more operators than fit into memory.
    """

    def __init__(self) -> None:
        self._left = MAX_INNER_OPERATORS

    def spend(self, operators: int) -> None:
        """Subtract the operators of a nested graph from the budget.

        Args:
            operators: number of operators in the graph.

        Raises:
            Missing: the budget is exhausted.
        """
        self._left -= operators + 1
        if self._left < 0:
            raise Missing(f"its graphs have more than {MAX_INNER_OPERATORS} operators")


class Writer:
    """Writer of an ONNX graph, through which conversion rules read inputs and write results.

    A tensor is identified by its index in `tensors`; parameters with this index are called `place`.
    Layouts only concern images, which are tensors with four dimensions.

    Args:
        source: the TensorFlow Lite graph to convert.
        outer: writer of the surrounding graph, if an operator of that graph executes this graph.
        inline: whether nodes are written into the ONNX graph of `outer`. If False, they form an
            ONNX graph of their own, which may read tensors of `outer`.

    Attributes:
        tensors: the tensors of the graph.
        source: the TensorFlow Lite graph to convert.
        subgraphs: the other graphs of the file, by number.
        opset: opset of the ONNX model.
        depth: nesting depth of the graph.
        budget: limit on the number of operators in nested graphs.
        derived: indices of the computed tensors whose values follow from constants and shapes.
    """

    def __init__(
        self, source: TfliteGraph, outer: Writer | None = None, *, inline: bool = False
    ) -> None:
        self.tensors = source.tensors
        self.source = source
        self.subgraphs: Mapping[int, TfliteGraph] = (
            source.subgraphs if outer is None else outer.subgraphs
        )
        self._values = _constants(source)
        self.opset: int = _opset(source) if outer is None else outer.opset
        self._graph: GraphBuilder
        self._infos: dict[str, onnx.ValueInfoProto]
        if outer is not None and inline:
            self._graph, self._infos = outer._graph, outer._infos
        else:
            self._graph = GraphBuilder(None if outer is None else outer._graph)
            self._infos = {}
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.budget: OperatorBudget = OperatorBudget() if outer is None else outer.budget
        self.derived: set[int] = set()
        self._complex: set[int] = set()
        self._open: set[int] = set()
        self._stored: dict[tuple[int, TfliteLayout], str] = {}
        self._real: dict[tuple[int, TfliteLayout], str] = {}
        self._operator, self._in_floats, self._first = "", False, 0
        self._wide: Mapping[str, str] = {}
        self._written_by: dict[int, str] = {}
        self._names: dict[int, str] = {}
        if outer is None:
            for place in dict.fromkeys((*source.inputs, *source.outputs)):
                self._names[place] = self._graph.tensor_names.take_free_name(
                    self.tensors[place].name or f"tensor{place}"
                )
            for place in source.inputs:
                self._stored[place, FILED] = self._names[place]

    @property
    def operator(self) -> str:
        """Name of the operator that is being written."""
        return self._operator

    def begin(self, operator: str, kind: str = "", *, in_floats: bool = False) -> None:
        """Start writing an operator.

        Args:
            operator: name of the operator, from which the names of its nodes are derived.
            kind: name of the operator's kind in the schema.
            in_floats: store quantised constants as float32. If False, they are stored as integers
                that a DequantizeLinear converts.
        """
        self._operator, self._in_floats = operator, in_floats
        self._wide = WIDENED.get(kind, {})
        self._first = len(self._graph.nodes)

    # inputs of operators

    def is_constant(self, place: int) -> bool:
        """Return whether the values of a tensor are known at conversion time.

        Args:
            place: tensor index.
        """
        return place in self._values

    def is_known(self, place: int) -> bool:
        """Return whether a tensor is a constant, an input, or already computed.

        Args:
            place: tensor index.
        """
        return place in self._values or self._native(place) is not None

    def layout(self, place: int) -> TfliteLayout:
        """Return the layout in which a tensor exists in the ONNX graph.

        Args:
            place: tensor index.

        Returns:
            (n, c, h, w) if the tensor exists in both layouts, and the file's layout if it has not
            been computed yet.
        """
        return self._native(place) or FILED

    def constant(self, place: int, what: str) -> NDArray[Any]:
        """Return the values of a constant tensor, in the tensor's shape.

        Args:
            place: tensor index.
            what: description of the tensor, with which an error message begins.

        Raises:
            Missing: the tensor is not constant.
        """
        if place not in self._values:
            raise Missing(f"{what} must be constant, not computed")
        return self._values[place]

    def integers(self, place: int, what: str) -> list[int]:
        """Return the values of a constant integer tensor as a flat list.

        Args:
            place: tensor index.
            what: description of the tensor, with which an error message begins.

        Raises:
            Missing: the tensor is not constant, or its element type is not an integer type.
        """
        values = self.constant(place, what)
        if values.dtype.kind not in "iu":
            raise Missing(f"{what} must have an integer type, not {values.dtype}")
        return [int(value) for value in values.ravel()]

    def stored_name(self, place: int, layout: TfliteLayout = FILED) -> str:
        """Return the name of a tensor in the form in which the file stores it: integers or floats.

        Args:
            place: tensor index.
            layout: layout in which the tensor is read.

        Raises:
            ModelFileError: the tensor has not been computed yet.
        """
        if place in self._values:
            return self.add(self.tensors[place].name, _turn_values(self._values[place], layout))
        native = self._native(place)
        if native is None:
            name = printable(self.tensors[place].name)
            raise ModelFileError(
                f"an operator reads the tensor '{name}' before it is computed; the file is "
                "damaged, convert it again"
            )
        if (place, native) not in self._stored:
            self._stored[place, native] = self._quantise(place, native, self._real[place, native])
        if (place, layout) not in self._stored:
            self._stored[place, layout] = self._turn(place, layout, self._stored[place, native])
        return self._stored[place, layout]

    def computed_type(self, place: int) -> str:
        """Return the NumPy type in which the current operator computes a tensor.

        The type is float32 for a quantised tensor. A type that onnxruntime does not support for
        this operator is replaced by a wider type.

        Args:
            place: tensor index.
        """
        tensor = self.tensors[place]
        if tensor.quantisation is not None:
            return "float32"
        return self._wide.get(tensor.dtype, tensor.dtype)

    def real(self, place: int, layout: TfliteLayout = FILED) -> str:
        """Return the name of a tensor's dequantised values, in the type of `computed_type`.

        Args:
            place: tensor index.
            layout: layout in which the tensor is read.
        """
        name, tensor = self._real_form(place, layout), self.tensors[place]
        is_wide = tensor.quantisation is None and tensor.dtype in self._wide
        if is_wide and place not in self._values:  # constants are converted already
            return self._cast(name, self._wide[tensor.dtype])
        return name

    def _cast(self, name: str, dtype: str) -> str:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.node("Cast", [name], "Cast", to=int(kind))

    def _real_form(self, place: int, layout: TfliteLayout) -> str:
        """Return the name of a tensor's dequantised values, before conversion to a wider type.

        Args:
            place: tensor index.
            layout: layout in which the tensor is read.
        """
        tensor = self.tensors[place]
        if place in self._values:
            axis = 0 if tensor.quantisation is None else tensor.quantisation.axis
            turned = layout.axis(axis, len(tensor.shape)) if tensor.shape else 0
            return self.weight(place, _turn_values(self._values[place], layout), turned)
        if (place, layout) not in self._real:
            stored = self.stored_name(place, layout)
            self._real[place, layout] = (
                stored if tensor.quantisation is None
                else self._dequantise(stored, tensor.quantisation, tensor.dtype,
                                      self._written_by.get(place, tensor.name))
            )  # fmt: skip
        return self._real[place, layout]

    def weight(self, place: int, values: NDArray[Any], axis: int, role: str = "") -> str:
        """Add a constant in the form in which an operator reads it: as dequantised values.

        Args:
            place: index of the tensor from which the constant comes.
            values: values of the constant, possibly in another shape than the tensor.
            axis: axis of the channels in `values`.
            role: suffix of the constant's name; "" to use the tensor's name.

        Returns:
            The name of the constant.
        """
        tensor = self.tensors[place]
        name = f"{self._operator}/{role}" if role else tensor.name
        if tensor.quantisation is None or values.dtype.kind == "f":
            return self.add(name, values.astype(self._wide.get(values.dtype.name, values.dtype)))
        moved = TfliteQuantisation(
            tensor.quantisation.scales, tensor.quantisation.zero_points, axis
        )
        if self._in_floats:
            return self.add(name, moved.real(values))
        return self._dequantise(self.add(name, values), moved, tensor.dtype, name)

    def add(self, name: str, values: NDArray[Any] | np.generic) -> str:
        """Add a constant to the ONNX graph.

        Args:
            name: prefix of its name.
            values: values of the constant.

        Returns:
            The name of the constant.
        """
        return self._graph.constant(name, values)

    def filled_constant(self, shape: Shape, value: float | int, dtype: str) -> str:
        """Return the name of a tensor whose elements are all equal to `value`.

        A large tensor is not stored, but created when the model runs.

        Args:
            shape: shape of the tensor.
            value: value of all elements.
            dtype: NumPy type of the tensor.
        """
        if math.prod(shape) <= MAX_FILLED:
            return self.add("start", np.full(shape, value, dtype))
        sizes = self.add("shape", np.array(shape, np.int64))
        number = numpy_helper.from_array(np.full(1, value, dtype))
        return self.node("ConstantOfShape", [sizes], "Start", value=number)

    # outputs of operators

    def node(self, op: str, inputs: Sequence[str], suffix: str = "", **attributes: Any) -> str:
        """Add a node with one result, and return the name of the result.

        Args:
            op: ONNX operator type.
            inputs: names of the input tensors.
            suffix: suffix that is appended to the operator's name to get the node's name.
            **attributes: attributes of the node.
        """
        name = f"{self._operator}/{suffix}" if suffix else self._operator
        return self._graph.node(op, inputs, name, **attributes)

    def nodes(
        self, op: str, inputs: Sequence[str], count: int, suffix: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with several results, and return the names of the results.

        Args:
            op: ONNX operator type.
            inputs: names of the input tensors.
            count: number of results.
            suffix: suffix that is appended to the operator's name to get the node's name.
            **attributes: attributes of the node.
        """
        name = f"{self._operator}/{suffix}" if suffix else self._operator
        return self._graph.results_of(op, inputs, name, count, **attributes)

    def split(self, data: str, axis: int, sizes: Sequence[int]) -> list[str]:
        """Add a Split and return the names of the parts.

        Args:
            data: name of the tensor to split.
            axis: axis along which it is split.
            sizes: size of each part along the axis.
        """
        lengths = self.add(f"{self._operator}/sizes", np.array(sizes, np.int64))
        return self.nodes("Split", [data, lengths], len(sizes), axis=axis)

    def fold(self, place: int, values: NDArray[Any]) -> None:
        """Replace a computed tensor by a constant.

        Args:
            place: tensor index.
            values: values of the tensor, in its shape.
        """
        self._values[place] = values

    # subgraphs

    def bind(self, place: int, outer: Writer, argument: int) -> None:
        """Connect an input of this graph to a tensor of the surrounding graph.

        Args:
            place: tensor index of the input.
            outer: writer of the surrounding graph.
            argument: tensor index in the surrounding graph.
        """
        if argument in outer._values:
            self._values[place] = outer._values[argument]
        else:
            self._stored[place, FILED] = outer.stored_name(argument)
        if argument in outer.derived:
            self.derived.add(place)
        if outer.is_open(argument):
            self._open.add(place)

    def bind_stored(self, place: int, name: str) -> None:
        """Connect an input of this graph to an ONNX tensor, which contains the input's stored form.

        Args:
            place: tensor index of the input.
            name: name of the ONNX tensor.
        """
        self._stored[place, FILED] = name

    def declare(self, place: int) -> onnx.ValueInfoProto:
        """Make an input of this graph an input of the ONNX graph, and return its name and type.

        Args:
            place: tensor index of the input.
        """
        name = self._graph.tensor_names.take_free_name(self.tensors[place].name or f"tensor{place}")
        self._stored[place, FILED] = name
        return self._info(place, FILED, name)

    def declare_scalar(self, name: str, dtype: str) -> onnx.ValueInfoProto:
        """Create the name and type of an additional scalar input of the ONNX graph.

        Args:
            name: suffix of the input's name.
            dtype: NumPy type of the input.
        """
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        free = self._graph.tensor_names.take_free_name(f"{self._operator}/{name}")
        return helper.make_tensor_value_info(free, kind, ())

    def inner_graph(
        self,
        inputs: Sequence[onnx.ValueInfoProto],
        results: Sequence[tuple[str, str, Sequence[int | None]]],
    ) -> onnx.GraphProto:
        """Return the finished ONNX graph, which becomes an attribute of an operator such as Loop.

        Args:
            inputs: inputs of the graph.
            results: name, NumPy type and shape of each output. A size is None if it depends on
                values of tensors.
        """
        outputs = []
        for name, dtype, shape in results:
            output = self._graph.node("Identity", [name], f"{self._operator}/output")
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            outputs.append(helper.make_tensor_value_info(output, kind, shape))
        nodes = self._graph.needed_nodes([info.name for info in outputs])
        computed = {name for node in nodes for name in node.output}
        return helper.make_graph(
            nodes, self._operator, list(inputs), outputs, self._graph.constants(nodes),
            value_info=[info for name, info in self._infos.items() if name in computed],
        )  # fmt: skip

    # Sizes that depend on values, and complex numbers.

    def is_open(self, place: int) -> bool:
        """Return whether a size of a tensor depends on values of tensors.

        Only the number of dimensions is then known of the tensor's shape.

        Args:
            place: tensor index.
        """
        return place in self._open

    def set_open(self, places: Iterable[int]) -> None:
        """Record that sizes of some tensors depend on values of tensors.

        Args:
            places: indices of the tensors.
        """
        self._open.update(places)

    def is_derived(self, place: int) -> bool:
        """Return whether the values of a tensor are constant or follow from constants and shapes.

        Args:
            place: tensor index.
        """
        return place in self._values or place in self.derived

    def is_complex(self, place: int) -> bool:
        """Return whether a tensor contains complex numbers.

        They are stored as pairs of the real and the imaginary part.

        Args:
            place: tensor index.
        """
        return place in self._complex

    def write_complex(self, place: int, result: str) -> None:
        """Write a complex result to a tensor.

        Args:
            place: tensor index of the output.
            result: name of a real tensor of shape (…, 2), whose last axis contains the real and the
                imaginary part.

        Raises:
            Missing: the tensor is an output of the network.
        """
        if place in self._names:
            raise Missing(
                "its complex numbers are an output of the network, which ONNX does not support"
            )
        self._complex.add(place)
        self.write_stored(place, result)

    def keep_foreign(self, kind: str, inputs: Sequence[int], outputs: Sequence[int]) -> str:
        """Keep an operator that cannot be converted, as a node of the domain `tflite`.

        Args:
            kind: kind of the operator.
            inputs: tensor indices of the operator's inputs.
            outputs: tensor indices of the operator's outputs.

        Returns:
            The name of the node.
        """
        self._graph.rename_nodes(self._operator, self._first)  # nodes that the failed rule wrote
        # The state is not converted, so that its values are unknown.
        input_names = ["" if self._is_state(place) else self.stored_name(place) for place in inputs]
        written = []
        for place in outputs:
            if self._written_by.get(place) == self._operator:  # written before its rule failed
                self._forget(place)
            self._begin_writing(place, FILED)
            self._stored[place, FILED] = self._named(place, FILED)
            written.append(self._stored[place, FILED])
        node = helper.make_node(printable(kind), input_names, written, domain=FOREIGN)
        self._graph.append(node, self._operator)
        return str(node.name)

    def _forget(self, place: int) -> None:
        """Remove the nodes and constant values that the current operator has written for a tensor.

        Args:
            place: tensor index.
        """
        names = set()
        for layout in TfliteLayout:
            for forms in (self._stored, self._real):
                if (place, layout) in forms:
                    names.add(forms.pop((place, layout)))
        self._graph.drop(names, self._first)
        self._values.pop(place, None)

    def _is_state(self, place: int) -> bool:
        return place < 0 or (self.tensors[place].is_variable and not self.is_known(place))

    def write(
        self, place: int, result: str, layout: TfliteLayout = FILED, *, exact: bool = False
    ) -> None:
        """Write a result of dequantised values to a tensor, which is quantised if the file says so.

        Args:
            place: tensor index of the output.
            result: name of the result.
            layout: layout of the result.
            exact: whether each value is already a multiple of the tensor's scale. A tensor of such
                values is only quantised if an operator reads its integers.
        """
        self._begin_writing(place, layout)
        self._check_scale(place)
        if self.tensors[place].quantisation is None and self.tensors[place].dtype in self._wide:
            result = self._cast(result, self.tensors[place].dtype)
        if self.tensors[place].quantisation is None:
            self._stored[place, layout] = self._call(place, layout, result)
        elif exact:
            self._real[place, layout] = result
        else:
            self._stored[place, layout] = self._quantise(place, layout, result)

    def write_stored(self, place: int, result: str, layout: TfliteLayout = FILED) -> None:
        """Write a result to a tensor without quantising it.

        The result must already have the form in which the file stores the tensor: integers or
        floats.

        Args:
            place: tensor index of the output.
            result: name of the result.
            layout: layout of the result.
        """
        self._begin_writing(place, layout)
        self._stored[place, layout] = self._call(place, layout, result)

    def model(self) -> onnx.ModelProto:
        """Return the finished ONNX model."""
        for place in dict.fromkeys(self.source.outputs):
            stored, name = self.stored_name(place), self._names[place]
            # The tensor already has the name of another one, such as an input.
            if stored != name:
                self._graph.append(
                    helper.make_node("Identity", [stored], [name]), f"{name}/Identity"
                )
        nodes = self._graph.needed_nodes([self._names[place] for place in self.source.outputs])
        computed = {name for node in nodes for name in node.output} - set(self._names.values())
        graph = helper.make_graph(
            nodes, "tflite",
            [self._info(place, FILED) for place in dict.fromkeys(self.source.inputs)],
            [self._info(place, FILED) for place in dict.fromkeys(self.source.outputs)],
            self._graph.constants(nodes),
            value_info=[info for name, info in self._infos.items() if name in computed],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain == FOREIGN for node in nodes):
            opsets.append(helper.make_opsetid(FOREIGN, 1))
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tilewright"
        )

    # forms of a tensor

    def _native(self, place: int) -> TfliteLayout | None:
        """Return a layout in which a tensor exists, (n, c, h, w) if it exists in both.

        Args:
            place: tensor index.

        Returns:
            The layout, or None if the tensor has not been computed yet.
        """
        for layout in (FIRST, FILED):
            if (place, layout) in self._stored or (place, layout) in self._real:
                return layout
        return None

    def _begin_writing(self, place: int, layout: TfliteLayout) -> None:
        """Check that a tensor may be written, and record the operator that writes it.

        Args:
            place: tensor index.
            layout: layout in which the tensor is written.

        Raises:
            Missing: the layout is (n, c, h, w), but the tensor is not an image.
            ModelFileError: the tensor has already been written.
        """
        rank = len(self.tensors[place].shape)
        if layout is FIRST and rank != 4:
            raise Missing(f"its result has {rank} dimensions, which are not those of an image")
        if self.is_known(place):
            name = printable(self.tensors[place].name)
            raise ModelFileError(
                f"two operators compute the tensor '{name}', or an operator overwrites an "
                "input or a constant; the file is damaged, convert it again"
            )
        self._written_by[place] = self._operator

    def _check_scale(self, place: int) -> None:
        """Check that ONNX's QuantizeLinear can produce the integers of an output.

        Args:
            place: tensor index of the output.

        Raises:
            Missing: it has one scale per channel, a scale of 0, or 32-bit integers.
        """
        quantisation = self.tensors[place].quantisation
        if quantisation is None:
            return
        if quantisation.scales.size > 1 or not quantisation.scales.all():
            raise Missing("its result has one scale per channel, or the scale 0")
        if self.tensors[place].dtype == "int32":
            raise Missing("its result is quantised to 32 bits")

    def _turn(self, place: int, layout: TfliteLayout, stored: str) -> str:
        """Convert an image to the other layout, and return its name.

        A Reshape is used instead of a Transpose if the order of the elements does not change.

        Args:
            place: tensor index of the image.
            layout: layout to which the image is converted.
            stored: name of the image in the other layout.

        Raises:
            Missing: the tensor does not have four dimensions.
        """
        shape = self.tensors[place].shape
        if len(shape) != 4:
            raise Missing(f"its data have {len(shape)} dimensions, which are not those of an image")
        base = self._written_by.get(place, self.tensors[place].name)
        if not self.is_open(place) and (shape[3] == 1 or shape[1] * shape[2] == 1):
            sizes = self.add(f"{base}/shape", np.array(layout.permute_shape(shape), np.int64))
            result = self._graph.node("Reshape", [stored, sizes], f"{base}/reshape")
        else:
            result = self._graph.node(
                "Transpose", [stored], f"{base}/transpose", perm=list(layout.value)
            )
        return self._call(place, layout, result)

    def _quantise(self, place: int, layout: TfliteLayout, real: str) -> str:
        tensor = self.tensors[place]
        quantisation = tensor.quantisation
        assert quantisation is not None
        base = self._written_by.get(place, tensor.name)
        result = self._graph.node(
            "QuantizeLinear", [real, *self._scale(quantisation, tensor.dtype)],
            f"{base}/quantize",
        )  # fmt: skip
        return self._call(place, layout, result)

    def _dequantise(
        self, stored: str, quantisation: TfliteQuantisation, dtype: str, base: str
    ) -> str:
        channel_axis = {"axis": quantisation.axis} if quantisation.scales.size > 1 else {}
        return self._graph.node(
            "DequantizeLinear", [stored, *self._scale(quantisation, dtype)],
            f"{base}/dequantize", **channel_axis,
        )  # fmt: skip

    def _scale(self, quantisation: TfliteQuantisation, dtype: str) -> list[str]:
        scales, zeros = quantisation.scales, quantisation.zero_points.astype(dtype)
        if scales.size == 1:
            return [self.add("scale", scales.reshape(())), self.add("zero", zeros.reshape(()))]
        return [self.add(f"{self._operator}/scales", scales), self.add(f"zeros/{dtype}", zeros)]

    # names

    def _call(self, place: int, layout: TfliteLayout, result: str) -> str:
        """Rename a result to the tensor to which it is written.

        A result that already has the name of another tensor keeps its name.

        Args:
            place: index of the tensor.
            layout: layout of the result.
            result: name of the result.

        Returns:
            The new name of the result.
        """
        if not self._graph.is_unnamed(result):
            return result
        name = self._named(place, layout)
        self._graph.rename(result, name)
        return name

    def _named(self, place: int, layout: TfliteLayout) -> str:
        """Return an ONNX name for a tensor in a layout, and record its type and shape.

        Args:
            place: tensor index.
            layout: the layout. The name of an image in the layout (n, c, h, w) ends with "/nchw".
        """
        name = self.tensors[place].name or f"tensor{place}"
        if layout is FIRST:
            name = self._graph.tensor_names.take_free_name(f"{name}/nchw")
        else:
            name = self._names.get(place) or self._graph.tensor_names.take_free_name(name)
        self._infos[name] = self._info(place, layout, name)
        return name

    def _info(self, place: int, layout: TfliteLayout, name: str = "") -> onnx.ValueInfoProto:
        tensor = self.tensors[place]
        if place in self._complex:
            return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (*tensor.shape, 2))
        if not tensor.dtype:
            return helper.make_empty_tensor_value_info(name or self._names[place])
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
        shape: Sequence[int | None] = layout.permute_shape(tensor.shape)
        if place in self._open:
            shape = [None] * len(shape)
        return helper.make_tensor_value_info(name or self._names[place], kind, shape)


def _constants(source: TfliteGraph) -> dict[int, NDArray[Any]]:
    """Return the constants of a graph, by tensor index.

    This includes tensors without elements that no operator computes. Files contain no data for
    them.
    """
    computed = {i for operator in source.operators for i in operator.outputs} | set(source.inputs)
    values = {}
    for place, tensor in enumerate(source.tensors):
        if tensor.data is not None:
            values[place] = tensor.data
        elif 0 in tensor.shape and tensor.dtype and place not in computed:
            values[place] = np.zeros(tensor.shape, tensor.dtype)
    return values


def _opset(source: TfliteGraph) -> int:
    """Return the ONNX opset that the operators and tensors of a file need."""
    graphs = (source, *source.subgraphs.values())
    tensors = (tensor for graph in graphs for tensor in graph.tensors)
    wide = any(t.quantisation is not None and t.dtype == "int16" for t in tensors)
    versions = [OPSETS.get(o.kind, OPSET) for graph in graphs for o in graph.operators]
    return max([OPSET_16_BITS if wide else OPSET, *versions])


def _turn_values(values: NDArray[Any], layout: TfliteLayout) -> NDArray[Any]:
    """Convert the values of a constant from the file's layout to the given layout.

    Args:
        values: the values. Only arrays with four dimensions are changed.
        layout: the layout.
    """
    return values.transpose(layout.value) if layout is FIRST and values.ndim == 4 else values
