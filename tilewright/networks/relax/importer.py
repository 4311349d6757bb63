"""Import ONNX models to Relax, and record the source operator of every binding.

The converters in `networks.relax.converters` supplement and replace those of TVM's importer.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, MutableSequence, Sequence

import onnx
from onnx import helper
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend

from tilewright.core.tvm_types import OnnxAttributes, RelaxExpr, RelaxVar
from tilewright.networks.errors import OperatorImportError
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, Shape, static_shape
from tilewright.networks.partition.region_models import DOMAIN, NUMBER, REGION
from tilewright.networks.partition.region_session import FUNCTION
from tilewright.networks.relax.batch_norm import fold_batch_norm
from tilewright.networks.relax.bindings import FlatGraph, flatten
from tilewright.networks.relax.converters import CONVERTERS, MICROSOFT, Inputs
from tilewright.networks.relax.failures import explanation
from tilewright.networks.relax.input_checks import checked_inputs

UNBOUND = (relax.Tuple, relax.Var, relax.ShapeExpr, GenericConst)  # need no variable


def import_onnx(model: onnx.ModelProto, inputs: Sequence[str]) -> FlatGraph:
    """Convert a normalised ONNX model to Relax, and fold each BatchNorm.

    Args:
        model: the model.
        inputs: names of the inputs that change with each run. Other graph inputs are weights.

    Returns:
        The flat view of the Relax module.

    Raises:
        OperatorImportError: an operator cannot be imported.
    """
    opset = max((o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), default=13)
    importer = _Importer(_region_results(model.graph))
    with _suppress_output():
        try:
            module = importer.from_onnx(model.graph, opset)
        except Exception as error:
            importer.close()
            said = explanation(model, importer.node, error)
            raise OperatorImportError(said, importer.node) from error
    data = [importer.variable(name) for name in inputs]
    return fold_batch_norm(flatten(module, data, importer.owners))


def _region_results(graph: onnx.GraphProto) -> dict[str, list[tuple[Shape, str]]]:
    """Return the shape and element type of each result of each onnxruntime region.

    A region is a part of the graph that onnxruntime runs. It is a single node here.

    Returns:
        List of (shape, dtype name) by the name of the region.

    Raises:
        OperatorImportError: the shape of a result is not static.
    """
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    results: dict[str, list[tuple[Shape, str]]] = {}
    for node in graph.node:
        if node.domain == DOMAIN and node.op_type == REGION:
            if any(static_shape(infos[name]) is None for name in node.output):
                raise OperatorImportError(
                    "the shape of its result depends on values of tensors", node.name
                )
            kinds = [infos[name].type.tensor_type.elem_type for name in node.output]
            results[node.name] = [
                (static_shape(infos[name]) or (), helper.tensor_dtype_to_np_dtype(kind).name)
                for name, kind in zip(node.output, kinds, strict=True)
            ]
    return results


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, extended so that each operator's result is bound to a variable.

    Args:
        written: (shape, dtype name) of each result of each onnxruntime region, by the region's
            name.

    Attributes:
        owners: name of the source operator, by variable.
        node: name of the operator that is being converted.
    """

    def __init__(self, written: Mapping[str, Sequence[tuple[Shape, str]]]) -> None:
        super().__init__({}, "float32", sanitize=False)
        self._written = written
        self.owners: dict[RelaxVar, str] = {}
        self.node = ""

    def variable(self, tensor: str) -> RelaxVar:
        return self._nodes[tensor]

    def close(self) -> None:
        """Close the block that a failed operator left open, so that TVM prints no warning."""
        if self.node:
            with contextlib.suppress(Exception):
                self.bb._end_block()

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Do nothing. Unsupported operators have already been assigned to onnxruntime."""

    def _convert_operator(
        self, op_name: str, inputs: MutableSequence[RelaxExpr], attrs: OnnxAttributes, opset: int
    ) -> RelaxExpr:
        self.node = attrs["tvm_custom"]["name"]
        if op_name == REGION:
            result = self._region(int(attrs[NUMBER]), inputs)
            return (
                self._bound(result)
                if len(self._written[self.node]) == 1
                else self._unpack_tuple(result)
            )
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
            return self._unpack_tuple(result)
        return self._bound(result)

    def _region(self, number: int, inputs: Inputs) -> RelaxExpr:
        """Return a call of the external function that runs a region in onnxruntime.

        Args:
            number: number of the region, which is part of the function's name.
            inputs: tensors that the region reads.
        """
        types = [relax.TensorType(shape, dtype) for shape, dtype in self._written[self.node]]
        name = FUNCTION.format(number)
        return relax.call_dps_packed(
            name, relax.Tuple(list(inputs)), types[0] if len(types) == 1 else types
        )

    def _bound(self, result: RelaxExpr) -> RelaxVar:
        bound = self.bb.emit(result, name_hint=self.node)
        self.owners[bound] = self.node
        return bound

    def _unpack_tuple(self, result: RelaxExpr) -> RelaxExpr:
        """Bind each field of an operator's tuple result to a variable.

        Args:
            result: the result of the operator.

        Returns:
            A tuple of the variables.
        """
        whole = self.bb.emit(result, name_hint=self.node)
        fields = [
            self.bb.emit(relax.TupleGetItem(whole, place)) for place in range(len(result.ty.fields))
        ]
        self.owners.update(dict.fromkeys((whole, *fields), self.node))
        return relax.Tuple(fields)


@contextlib.contextmanager
def _suppress_output() -> Iterator[None]:
    """Suppress the output and the warnings of TVM's importer; real errors are raised anyway."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
