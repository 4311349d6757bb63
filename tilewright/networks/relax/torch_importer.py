"""Imports torch.export to Relax, and records which operator every binding came from."""

from __future__ import annotations

import operator as builtin
import warnings
from collections import Counter
from typing import Any

from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tilewright.networks.errors import ImportFailedError
from tilewright.networks.graph import Operator, Shape
from tilewright.networks.relax.batch_norm import fold_batch_norm
from tilewright.networks.relax.bindings import FlatGraph, flatten
from tilewright.networks.relax.failures import plain


class TorchProgram:
    """An exported program after PyTorch's own decomposition into core operators."""

    def __init__(self, exported: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._exported = exported.run_decompositions()
        signature = self._exported.graph_signature
        self._nodes = [
            node
            for node in self._exported.graph.nodes
            if node.op == "call_function" and node.target is not builtin.getitem
        ]
        self._names = _names(self._nodes)
        placeholders = {
            node.name: node for node in self._exported.graph.nodes if node.op == "placeholder"
        }
        self.inputs: dict[str, Shape] = {
            name: _shape(placeholders[name]) for name in signature.user_inputs
        }
        self.outputs: list[str] = list(signature.user_outputs)
        self.operators = tuple(
            Operator(self._names[node], _operator(node), "aten", (node.name,))
            for node in self._nodes
        )
        self.shapes = {self._names[node]: _shape(node) for node in self._nodes}
        known = ExportedProgramImporter().create_convert_map()
        self.unsupported: dict[str, str] = {
            self._names[node]: _operator(node)
            for node in self._nodes
            if node.target.__name__ not in known
        }

    def flat(self, *, weights_as_parameters: bool) -> FlatGraph:
        """The flat view of the Relax module, BatchNorms folded; its weights are parameters of it or
        bound. Raises `ImportFailedError`."""
        module, importer = self._import(weights_as_parameters)
        module = relax.transform.DeadCodeElimination()(module)
        names = {}
        for node in self._nodes:
            variable = importer.env.get(node)
            if hasattr(variable, "name"):
                names[variable.name] = self._names[node]
        bindings = [b.var for block in module["main"].body.blocks for b in block.bindings]
        owners = {var: names[var.name] for var in bindings if var.name in names}
        data = module["main"].params[: len(self.inputs)]
        return fold_batch_norm(flatten(module, data, owners))

    def _import(self, weights_as_parameters: bool) -> tuple[Any, Any]:
        importer = ExportedProgramImporter()
        try:
            module = importer.from_exported_program(
                self._exported,
                keep_params_as_input=weights_as_parameters,
                unwrap_unit_return_tuple=True,
                no_bind_return_tuple=False,
                custom_convert_map=None,
            )
        except Exception as error:
            raise ImportFailedError(
                "the exported program cannot be imported: "
                f"{plain(error) or 'an operator has a form that TVM does not know'}; "
                "export the model to ONNX instead"
            ) from error
        return module, importer


def _names(nodes: list[Any]) -> dict[Any, str]:
    """The innermost module's path, and the node's name where a module calls several operators."""
    paths = {}
    for node in nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        paths[node] = stack[-1][0] if stack else ""
    calls = Counter(paths.values())
    return {
        node: path if path and calls[path] == 1 else f"{path}/{node.name}".lstrip("/")
        for node, path in paths.items()
    }


def _operator(node: Any) -> str:
    return str(node.target.__name__).partition(".")[0]


def _shape(node: Any) -> Shape:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return tuple(int(size) for size in getattr(value, "shape", ()))
