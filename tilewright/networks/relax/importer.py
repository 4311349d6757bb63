"""Imports ONNX to Relax, and records which source operator every binding came from.

Where TVM's importer has gaps, `networks.relax.converters` fills them.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend

from tilewright.networks.errors import ImportFailedError
from tilewright.networks.graph import STANDARD_DOMAINS
from tilewright.networks.relax.batch_norm import fold_batch_norm
from tilewright.networks.relax.bindings import FlatGraph, flatten
from tilewright.networks.relax.converters import CONVERTERS, MICROSOFT, Inputs
from tilewright.networks.relax.failures import explanation
from tilewright.networks.relax.input_checks import checked_inputs

UNBOUND = (relax.Tuple, relax.Var, relax.ShapeExpr, GenericConst)  # need no variable
SEQUENCES = frozenset((
    "Optional", "OptionalGetElement", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
    "SequenceInsert", "ConcatFromSequence", "SplitToSequence",
))  # fmt: skip
"""Operators that give a tuple as one result."""


def unsupported(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The operators nobody has a converter for."""
    stock = set(onnx_frontend._get_convert_map()) | {"Constant"}
    missing = []
    for node in nodes:
        known = node.op_type in stock and node.domain in (*STANDARD_DOMAINS, MICROSOFT)
        if not known and (_domain(node), node.op_type) not in CONVERTERS:
            missing.append(node)
    return missing


def import_onnx(model: onnx.ModelProto, inputs: Sequence[str]) -> FlatGraph:
    """The Relax module of a normalised model; graph inputs that are not among `inputs` are weights.

    BatchNorms are folded. Raises `ImportFailedError`, naming the operator.
    """
    opset = max((o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), default=13)
    importer = _Importer()
    with _quiet():
        try:
            module = importer.from_onnx(model.graph, opset)
        except Exception as error:
            importer.close()
            raise ImportFailedError(explanation(model, importer.node, error)) from error
    data = [importer.variable(name) for name in inputs]
    return fold_batch_norm(flatten(module, data, importer.owners))


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, binding each operator's result to a variable of its own."""

    def __init__(self) -> None:
        super().__init__({}, "float32", sanitize=False)
        self.owners: dict[Any, str] = {}
        self.node = ""

    def variable(self, tensor: str) -> Any:
        return self._nodes[tensor]

    def close(self) -> None:
        """End the block that an operator's failure left open, of which TVM would warn."""
        if self.node:
            with contextlib.suppress(Exception):
                self.bb._end_block()

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Done before, with names: `unsupported`."""

    def _convert_operator(
        self, op_name: str, inputs: Inputs, attrs: dict[str, Any], opset: int
    ) -> Any:
        self.node = attrs["tvm_custom"]["name"]
        inputs = checked_inputs(self.bb, op_name, self.node, inputs, attrs)
        own = CONVERTERS.get(("", op_name)) or CONVERTERS.get((MICROSOFT, op_name))
        result = own(self.bb, list(inputs), attrs) if own else None
        if result is None:
            result = super()._convert_operator(op_name, inputs, attrs, opset)
        for field in result.fields if isinstance(result, relax.Tuple) else (result,):
            if isinstance(field, relax.Var):
                self.owners.setdefault(field, self.node)
        if not isinstance(result, relax.Expr) or isinstance(result, UNBOUND):
            return result
        if isinstance(result.ty, relax.TupleType):
            single = op_name in SEQUENCES and isinstance(result, relax.Var)
            return result if single else self._unpacked(result)
        bound = self.bb.emit(result, name_hint=self.node)
        self.owners[bound] = self.node
        return bound

    def _unpacked(self, result: Any) -> Any:
        """The fields of a call's tuple, each a variable of the operator's own."""
        whole = self.bb.emit(result, name_hint=self.node)
        fields = [
            self.bb.emit(relax.TupleGetItem(whole, place)) for place in range(len(result.ty.fields))
        ]
        self.owners.update(dict.fromkeys((whole, *fields), self.node))
        return relax.Tuple(fields)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """TVM's importer prints and warns; what matters is raised."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _domain(node: onnx.NodeProto) -> str:
    return "" if node.domain in STANDARD_DOMAINS else node.domain
