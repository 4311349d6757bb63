"""Decide which operators TVM compiles: those whose form is in the table of supported forms.

A form describes what an operator computes, independently of sizes and values. It consists of the
operator type, the version of its definition, its attributes, the element types and ranks of its
inputs, and the outputs that are read. `python -m benchmarks.coverage.operator_forms` generates the
table: it compiles each form and compares the results with those of onnxruntime. Some operators of a
supported form are still not compiled, because of their sizes or values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, helper

from tilewright.core.files import Json, as_int, as_list, as_object, as_text
from tilewright.networks.onnx.files import node_reads
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, NormalGraph, Shape, data_inputs
from tilewright.networks.onnx.recurrent_operators import GATES, obstacle

TABLE = "supported_forms.json"
"""File name of the table of supported forms."""

CONSTANTS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,), "BatchNormalization": (1, 2, 3, 4), "Clip": (1, 2), "Conv": (1, 2),
    "ConvInteger": (1, 2, 3), "ConvTranspose": (1, 2), "CumSum": (1,),
    "DequantizeLinear": (0, 1, 2), "Expand": (1,), "GRU": (1, 2, 3, 4, 5), "Gather": (0, 1),
    "Gemm": (1, 2), "LSTM": (1, 2, 3, 4, 5, 6, 7), "MatMul": (0, 1), "MatMulInteger": (1, 2, 3),
    "OneHot": (1, 2), "Pad": (1, 2, 3), "QuantizeLinear": (1, 2), "RNN": (1, 2, 3, 4, 5),
    "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4),
    "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Trilu": (1,), "Unsqueeze": (1,),
    "Upsample": (1,), "ConstantOfShape": (0,),
    **{f"Reduce{name}": (1,) for name in (
        "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare",
    )},
}  # fmt: skip
"""Indices of the inputs for which TVM's importer distinguishes constants from computed tensors, by
operator type."""
STORED = frozenset((
    "Cast", "DequantizeLinear", "QuantizeLinear", "Reshape", "Squeeze", "Transpose", "Unsqueeze",
))  # fmt: skip
"""Operators whose results count as constants if all their inputs are constants. The importer reads
weights through these operators."""
MODES = frozenset((
    "align_corners", "allowzero", "antialias", "batch_dims", "ceil_mode", "center_point_box",
    "centered", "channels_last", "count_include_pad", "detect_negative", "detect_positive",
    "exclude_outside", "exclusive", "fmod", "input_forget", "is_causal", "keepdims", "largest",
    "layout", "linear_before_reset", "noop_with_empty_axes", "onesided", "reverse", "saturate",
    "select_last_index", "sorted", "storage_order", "training_mode", "transA", "transB",
    "transBatchA", "transBatchB", "unidirectional", "upper",
))  # fmt: skip
"""Integer attributes that select what an operator computes. The form of an operator includes their
values. All other integer attributes are sizes, positions and similar numbers. For them, the form
states only that the attribute is present and whether it is negative."""
WEIGHTED = frozenset(("Conv", "ConvInteger", "ConvTranspose", "QLinearConv"))
"""Operators whose attribute `kernel_shape` repeats sizes of their weights. The attribute is
therefore not part of their form."""
NO_AXES = "noop_with_empty_axes=1"
"""Text in the form of a reduction that does nothing if it has no axes. The text is removed if the
reduction has axes."""
ELEMENT_TYPES = frozenset(("to", "dtype", "output_dtype"))
"""Attributes whose value is an element type."""


@dataclass(frozen=True, order=True)
class OperatorForm:
    """Form of an operator: what it computes, independently of sizes and values.

    Attributes:
        operator: its type, with the domain if it is not standard.
        since: version of its definition.
        attributes: its attributes as text.
        inputs: one text per input: element type and rank, then "c" for a constant and "0" for a
            tensor without elements; "-" for an absent input. An operator with a variable number of
            inputs lists each distinct text once, followed by "*".
        outputs: one character per output, "1" if it is read and "0" otherwise, without trailing
            zeros; "*" for a variable number of outputs.
    """

    operator: str
    since: int
    attributes: str
    inputs: tuple[str, ...]
    outputs: str

    def __str__(self) -> str:
        listed = ", ".join((*self.inputs, *self.attributes.split()))
        return f"{self.operator} of version {self.since} with {listed or 'no inputs'}"


class Forms:
    """Determines the forms of the operators of one graph.

    Args:
        normal: the graph, with inferred shapes and element types.
    """

    def __init__(self, normal: NormalGraph) -> None:
        self._shapes, self._types = normal.shapes(), normal.types()
        self._constants = set(normal.tensors())
        for node in normal.graph.node:
            if node.op_type in STORED and self._constants.issuperset(filter(None, node.input)):
                self._constants.update(node.output)
        self._read = frozenset(normal.users())
        self._opsets = {o.domain: o.version for o in normal.model.opset_import}
        for name in STANDARD_DOMAINS:
            if name in self._opsets:
                self._opsets.setdefault("", self._opsets[name])

    def form_of(self, node: onnx.NodeProto) -> OperatorForm | None:
        """Return the form of an operator: what it computes, independently of sizes and values.

        Args:
            node: the operator.

        Returns:
            The form. None if forms cannot describe one of its attributes, or if the element type or
            rank of an input is unknown.
        """
        domain = "" if node.domain in STANDARD_DOMAINS else node.domain
        schema = _schema(node.op_type, domain, self._opsets.get(domain, 1))
        inputs = self._inputs(node, schema)
        attributes = _attributes(node, schema)
        if inputs is None or attributes is None:
            return None
        if len(node.input) > 1 and self._shapes.get(node.input[1]) != (0,):
            attributes = " ".join(word for word in attributes.split() if word != NO_AXES)
        name = f"{domain}.{node.op_type}" if domain else node.op_type
        outputs = "".join(str(int(name in self._read)) for name in node.output).rstrip("0")
        if len(node.output) > 1 and schema is not None and _is_variadic(schema.outputs):
            outputs = "*"
        since = 1 if schema is None else int(schema.since_version)
        return OperatorForm(name, since, attributes, inputs, outputs)

    def _inputs(
        self, node: onnx.NodeProto, schema: onnx.defs.OpSchema | None
    ) -> tuple[str, ...] | None:
        texts = []
        indices = CONSTANTS.get(node.op_type, ())
        for index, name in enumerate(node.input):
            shape: Shape | None = self._shapes.get(name)
            element_type = self._types.get(name)
            if not name:
                texts.append("-")
            elif shape is None or not element_type:
                return None
            else:
                constant = "c" if index in indices and name in self._constants else ""
                empty = "0" if 0 in shape and len(shape) > 1 else ""
                texts.append(f"{_type_name(element_type)}:{len(shape)}{constant}{empty}")
        while texts and texts[-1] == "-":
            texts.pop()
        variadic = schema is not None and _is_variadic(schema.inputs)
        return (*sorted(set(texts)), "*") if variadic and len(texts) > 1 else tuple(texts)


def _is_variadic(parameters: Sequence[onnx.defs.OpSchema.FormalParameter]) -> bool:
    """Return whether the number of an operator's inputs, or of its outputs, is variable.

    Args:
        parameters: description of the inputs, or of the outputs, in the ONNX standard.
    """
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return bool(parameters) and bool(parameters[-1].option == variadic)


@cache
def _schema(operator: str, domain: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(operator, opset, domain)
    except onnx.defs.SchemaError:  # the operator is from an unknown domain
        return None


def _type_name(kind: int) -> str:
    return str(TensorProto.DataType.Name(kind)).lower()


def _attributes(node: onnx.NodeProto, schema: onnx.defs.OpSchema | None) -> str | None:
    texts = []
    for attribute in sorted(node.attribute, key=lambda candidate: str(candidate.name)):
        text = _attribute(attribute)
        if attribute.name == "axis" and attribute.type == AttributeProto.INT:
            continue  # the axis is not part of a form
        if attribute.name == "kernel_shape" and node.op_type in WEIGHTED:
            continue
        if attribute.type == AttributeProto.FLOAT and _default_of(attribute, schema) is not None:
            continue  # its value does not change the form, as it has a default
        if text is None:
            return None
        if text and not _is_default(attribute, schema):
            texts.append(text)
    return " ".join(texts)


def _is_default(attribute: AttributeProto, schema: onnx.defs.OpSchema | None) -> bool:
    default = _default_of(attribute, schema)
    return default is not None and bool(default == helper.get_attribute_value(attribute))


def _default_of(attribute: AttributeProto, schema: onnx.defs.OpSchema | None) -> Any:
    """Return the default value of an operator's attribute.

    Args:
        attribute: the attribute.
        schema: definition of the operator in the ONNX standard, or None.

    Returns:
        The value, or None if the attribute has no default.
    """
    known = None if schema is None else schema.attributes.get(attribute.name)
    if known is None or not known.default_value.type:
        return None
    return helper.get_attribute_value(known.default_value)


def _attribute(attribute: AttributeProto) -> str | None:
    """Return the text of an attribute in a form, or None if forms cannot describe it."""
    name, value = str(attribute.name), helper.get_attribute_value(attribute)
    if name in ELEMENT_TYPES:
        return f"{name}={_type_name(value)}" if value else ""
    if attribute.type == AttributeProto.STRING:
        return f"{name}={value.decode(errors='replace')}" if name != "equation" else name
    if attribute.type == AttributeProto.STRINGS:
        return f"{name}={','.join(text.decode(errors='replace') for text in value)}"
    if attribute.type == AttributeProto.INT:
        return f"{name}={value}" if name in MODES else name + "<0" * (value < 0)
    if attribute.type == AttributeProto.INTS:
        ones = name in ("strides", "dilations") and set(value) <= {1}
        zeros = name in ("pads", "output_padding") and not any(value)
        return "" if ones or zeros else name + "<0" * (min(value, default=0) < 0)
    if attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS):
        return name
    if attribute.type == AttributeProto.TENSOR:
        return f"{name}={_type_name(attribute.t.data_type)}"
    return None


Row = tuple[str, int, str, str, tuple[str, ...]]
"""Row of the table: operator, version, attributes, outputs, and the inputs with "?" in place of
their ranks."""


class FormTable:
    """Set of the operator forms that are compiled.

    Forms that differ only in the ranks of their inputs share one row of the table.
    """

    def __init__(self, forms: Iterable[OperatorForm]) -> None:
        rows: dict[Row, set[str]] = {}
        for form in forms:
            row, ranks = _row_of(form)
            rows.setdefault(row, set()).add(ranks)
        self._rows: Mapping[Row, AbstractSet[str]] = rows

    @property
    def forms(self) -> frozenset[OperatorForm]:
        """All forms of the table."""
        return frozenset(
            OperatorForm(
                operator, since, attributes,
                tuple(map(_with_rank, kinds, ranks.split(" "))) if kinds else (), outputs,
            )
            for (operator, since, attributes, outputs, kinds), all_ranks in self._rows.items()
            for ranks in all_ranks
        )  # fmt: skip

    def __contains__(self, form: object) -> bool:
        if not isinstance(form, OperatorForm):
            return False
        row, ranks = _row_of(form)
        return ranks in self._rows.get(row, ())

    def to_json(self) -> Json:
        """Return the table as JSON: one object per row, with the ranks that it covers."""
        return [
            {
                "operator": operator, "since": since, "attributes": attributes,
                "outputs": outputs, "inputs": list(kinds), "ranks": sorted(ranks),
            }
            for (operator, since, attributes, outputs, kinds), ranks in sorted(self._rows.items())
        ]  # fmt: skip

    @classmethod
    def from_json(cls, rows: Json) -> FormTable:
        """Create a table from its JSON representation.

        Args:
            rows: the JSON data that `to_json` returned.
        """
        table = cls(())
        table._rows = {
            (
                as_text(row["operator"]), as_int(row["since"]), as_text(row["attributes"]),
                as_text(row["outputs"]), tuple(map(as_text, as_list(row["inputs"]))),
            ): frozenset(map(as_text, as_list(row["ranks"])))
            for row in map(as_object, as_list(rows))
        }  # fmt: skip
        return table


def _row_of(form: OperatorForm) -> tuple[Row, str]:
    """Return the row of the form table to which an operator form belongs.

    Args:
        form: the form.

    Returns:
        The row's key, in which the ranks of the inputs are left out, and these ranks as text.
    """
    parts = [_split_rank(text) for text in form.inputs]
    kinds = tuple(kind for kind, _ in parts)
    row = form.operator, form.since, form.attributes, form.outputs, kinds
    return row, " ".join(rank for _, rank in parts)


def _split_rank(text: str) -> tuple[str, str]:
    """Split the text of an operator's input in a form into the type and the rank.

    Args:
        text: element type and rank, such as "float32:4c"; "-" for an absent input.

    Returns:
        The text with "?" in place of the rank, and the rank.
    """
    kind, colon, rest = text.partition(":")
    return (f"{kind}:?{rest[1:]}", rest[0]) if colon else (text, "-")


def _with_rank(kind: str, rank: str) -> str:
    return kind.replace("?", rank)


@cache
def supported_forms() -> FormTable:
    """Return the table of supported forms that is part of this package."""
    text = files(__package__).joinpath(TABLE).read_text()
    return FormTable.from_json(json.loads(text))


def reasons_not_compiled(normal: NormalGraph, table: FormTable) -> dict[str, str]:
    """Return the reasons why operators of a graph are not compiled by TVM.

    Args:
        normal: the graph.
        table: the operator forms that are compiled.

    Returns:
        The reason by operator name. Operators that are compiled are left out.
    """
    forms, shapes, constants = Forms(normal), normal.shapes(), normal.tensors()
    reasons = dict.fromkeys(_constant(normal), "its result does not depend on any input")
    for node in normal.graph.node:
        form = forms.form_of(node)
        narrowed = ""
        if node.op_type in GATES and node.domain in STANDARD_DOMAINS:
            # Unrolling recurrent operators requires constant weights, and limits the length.
            narrowed = obstacle(node, shapes, constants)
        if node.op_type == "QuantizeLinear" and node.input[1] not in constants:
            # Casting the result of a division by a zero scale to an integer depends on the
            # processor.
            narrowed = "its scale is only known when the model runs"
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            reasons[node.name] = "control flow is not compiled"
        elif narrowed:
            reasons[node.name] = narrowed
        elif form is None:
            reasons[node.name] = "its form cannot be determined"
        elif form not in table:
            reasons[node.name] = f"{form} is not known to be computed exactly"
    return reasons


def _constant(normal: NormalGraph) -> list[str]:
    """Return the names of the operators that compute outputs which depend on no input.

    These operators are not compiled, because accelerators have no place for such outputs.
    """
    varying = {info.name for info in data_inputs(normal.model)}
    for node in normal.graph.node:
        if not varying.isdisjoint(node_reads(node)):
            varying.update(node.output)
    wanted = {info.name for info in normal.graph.output} - varying
    names = []
    for node in reversed(normal.graph.node):
        if not wanted.isdisjoint(node.output):
            names.append(node.name)
            wanted.update(node_reads(node))
    return names
