"""Imports and runs a network that comes as an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import onnx

from tilewright.networks.errors import ModelFileError, UnsupportedOperatorError, first_line
from tilewright.networks.fused_calls import NOTHING, Partitioned
from tilewright.networks.graph import (
    STANDARD_DOMAINS,
    NormalGraph,
    Shape,
    data_inputs,
    static_shape,
)
from tilewright.networks.imported_model import Whole
from tilewright.networks.macs import Operands, count
from tilewright.networks.model_analysis import Examined
from tilewright.networks.normalise import normalise
from tilewright.networks.onnx_opset import raise_opset
from tilewright.networks.onnx_qoperator import to_qdq
from tilewright.networks.onnx_reference import reference_model
from tilewright.networks.recurrent.operators import GATES
from tilewright.networks.strip_weights import weights_as_inputs, without_operators, without_weights
from tilewright.networks.unsupported_ops import CUT, DEPENDS, limits

if TYPE_CHECKING:
    from tilewright.networks.relax.bindings import FlatGraph

REPLACE = "replace this operator before converting the model, or cut it off"


class OnnxSource:
    """`model` may lack the data of large tensors; `weighted` gives the model with all of it.
    `missing` says of operators by name what is in the way of a conversion to ONNX."""

    def __init__(
        self,
        name: str,
        model: onnx.ModelProto,
        weighted: Callable[[], onnx.ModelProto],
        input_shapes: Mapping[str, Sequence[int]],
        missing: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self._missing = {node: (reason, REPLACE) for node, reason in missing.items()}
        self._model = model
        self._weighted = weighted
        self._input_shapes = input_shapes

    def weighted(self) -> onnx.ModelProto:
        """The model with all of its data."""
        return self._weighted()

    def examine(self) -> Examined:
        """Import without weight data and partition; operators nobody can import are set aside."""
        try:
            return self._examine()
        except UnicodeDecodeError:
            raise ModelFileError(
                f"'{self.name}' holds names that are not text; the file is damaged, export it again"
            ) from None

    def _examine(self) -> Examined:
        weightless = without_weights(to_qdq(self._model))
        _check(raise_opset(weightless))
        normal = normalise(weightless, self._input_shapes)
        unsupported = _unsupported(normal) | self._missing
        found, blocked = _importable(normal, unsupported)
        if found.dynamic:  # what TVM finds, not ONNX
            unsupported |= dict.fromkeys(found.dynamic, (DEPENDS, CUT))
            found, blocked = _importable(normal, unsupported)
        first = next(iter(unsupported), "")
        behind = f"behind '{first}', its input's shape is unknown"
        unsupported |= dict.fromkeys(blocked, (behind, f"see '{first}'"))
        inputs = {info.name: static_shape(info) or () for info in data_inputs(normal.model)}
        return Examined(
            name=self.name,
            inputs=inputs,
            operators=normal.operators,
            absorbed=normal.absorbed,
            unsupported=unsupported,
            readers=_readers(normal),
            shapes=_shapes(normal),
            found=found.partitioned,
            results=_results(normal),
            unsupported_macs=_macs(normal, unsupported),
            notes=normal.notes,
            constant_outputs=_constant_outputs(normal),
        )

    def whole(self) -> Whole:
        """All of it, with onnxruntime as the reference; raises as `import_whole`."""
        from tilewright.networks.quantise.session import ModelRunner

        refuse_unsupported(self.name, self._missing)
        model = reference_model(self._weighted())
        normal, flat = import_whole(self.name, model, self._input_shapes)
        outputs = tuple(info.name for info in normal.graph.output)
        return Whole(
            flat,
            tuple(info.name for info in data_inputs(normal.model)),
            outputs,
            ModelRunner(model, outputs),
            "onnxruntime",
        )


def import_whole(
    name: str, model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]]
) -> tuple[NormalGraph, FlatGraph]:
    """The normal form of a model with its weights, and what the importer makes of it. Raises
    `UnsupportedOperatorError`, and as `normalise` and the importer."""
    normal = normalise(to_qdq(model), input_shapes)
    refuse_unsupported(name, _unsupported(normal))
    flat, dynamic = _flat(normal.model, normal.model)
    refuse_unsupported(name, dict.fromkeys(dynamic, (DEPENDS, CUT)))
    return normal, flat


def _flat(model: onnx.ModelProto, named: onnx.ModelProto) -> tuple[FlatGraph, tuple[str, ...]]:
    """What TVM's importer makes of a model, with the data inputs of the one `named`; operators
    whose output shapes depend on data."""
    from tilewright.networks.relax.bindings import dynamic_nodes
    from tilewright.networks.relax.importer import import_onnx

    flat = import_onnx(model, [info.name for info in data_inputs(named)])
    return flat, dynamic_nodes(flat)


def refuse_unsupported(name: str, unsupported: Mapping[str, tuple[str, str]]) -> None:
    """Raises `UnsupportedOperatorError` naming the first operators that cannot be imported."""
    if unsupported:
        shown = "; ".join(
            f"'{node}': {why} ({step})" for node, (why, step) in list(unsupported.items())[:3]
        )
        more = f" and {len(unsupported) - 3} more" if len(unsupported) > 3 else ""
        raise UnsupportedOperatorError(
            f"'{name}' cannot be imported whole: {shown}{more}; "
            f"`tilewright inspect {name}` lists every operator and what to do"
        )


def _unsupported(normal: NormalGraph) -> dict[str, tuple[str, str]]:
    """By operator why the importer cannot or must not have it, and the next step."""
    from tilewright.networks.relax.importer import unsupported

    found = limits(normal)
    for node in unsupported(normal.graph.node):
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        reason = f"the importer has no rule for the operator {operator}"
        found.setdefault(node.name, (reason, _step(node)))
    return found


def _step(node: onnx.NodeProto) -> str:
    """What to do about an operator that nobody has a rule for."""
    if node.op_type in ("If", "Loop", "Scan"):
        return (
            "export the model without control flow: trace it with fixed sizes, or cut it before "
            "this one"
        )
    if node.domain in STANDARD_DOMAINS:
        return "cut the model before it, or export it in simpler operators (an older opset)"
    return "export the model with standard ONNX operators, or cut this one off"


class _ImportedPart(NamedTuple):
    """What the importer says of a part of a model, and the operators whose results have no static
    shape."""

    partitioned: Partitioned
    dynamic: tuple[str, ...]


def _importable(
    normal: NormalGraph, unsupported: Mapping[str, tuple[str, str]]
) -> tuple[_ImportedPart, set[str]]:
    """What is found of a model without some operators, and the further ones that go with them."""
    from tilewright.networks.relax.partition import partition

    model, blocked = normal.model, set[str]()
    if unsupported:
        model, blocked = without_operators(normal, unsupported)
    if not model.graph.node:
        return _ImportedPart(NOTHING, ()), blocked
    flat, dynamic = _flat(weights_as_inputs(model), model)
    return _ImportedPart(NOTHING if dynamic else partition(flat).found, dynamic), blocked


def _macs(normal: NormalGraph, names: Collection[str]) -> dict[str, int]:
    """Multiply-accumulates of operators by their ONNX shapes; those of them that do any."""
    shapes = normal.shapes()
    found = {}
    for node in normal.graph.node:
        known = node.output[0] in shapes or node.op_type in GATES
        if node.name not in names or not known:
            continue
        operator = node.op_type
        if operator == "Attention":
            operator = f"{node.domain or 'ai.onnx'}.{operator}"
        equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
        operands = Operands(
            [shapes.get(name) for name in node.input], shapes.get(node.output[0], ()), equation
        )
        found[node.name] = count(operator, operands)
    return {name: macs for name, macs in found.items() if macs}


def _check(model: onnx.ModelProto) -> None:
    """ONNX's own checker; raises `ModelFileError`."""
    try:
        onnx.checker.check_model(weights_as_inputs(model))
    except onnx.checker.ValidationError as error:
        reason = first_line(error)
        raise ModelFileError(f"the model is not valid ONNX: {reason}; export it again") from error


def _readers(normal: NormalGraph) -> dict[str, tuple[str, ...]]:
    by_input: dict[str, list[str]] = {}
    for node in normal.graph.node:
        for name in node.input:
            by_input.setdefault(name, []).append(node.name)
    return {
        node.name: tuple(reader for output in node.output for reader in by_input.get(output, []))
        for node in normal.graph.node
    }


def _constant_outputs(normal: NormalGraph) -> tuple[str, ...]:
    varies = {info.name for info in data_inputs(normal.model)}
    inside = any(a.HasField("g") or a.graphs for n in normal.graph.node for a in n.attribute)
    for node in normal.graph.node:
        if inside or not varies.isdisjoint(node.input):  # a subgraph may read any tensor
            varies.update(node.output)
    return tuple(output.name for output in normal.graph.output if output.name not in varies)


def _results(normal: NormalGraph) -> frozenset[str]:
    outputs = {info.name for info in normal.graph.output}
    return frozenset(node.name for node in normal.graph.node if outputs & set(node.output))


def _shapes(normal: NormalGraph) -> dict[str, Shape]:
    shapes = normal.shapes()
    return {
        operator.name: shapes[operator.outputs[0]]
        for operator in normal.operators
        if operator.outputs and operator.outputs[0] in shapes
    }
