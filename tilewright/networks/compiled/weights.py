"""Takes the weights out of a compiled network: its function reads them from its last parameter.

Weights that are part of a library are linked into it, and TVM copies them twice as it loads it. In
a file of their own they are mapped. A page is read when it is first used, and all processes that
run the network share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst, IRModule
from tvm.ir.transform import module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from tilewright.networks.artifact.weights_file import DTYPES, MOST_AXES
from tilewright.networks.compiled.loaded_library import MAIN

LEAST_BYTES = 1 << 14
"""Of an array that is taken out; shorter ones are quicker to reach in the library."""


def taking_out(weights: list[NDArray[Any]]) -> Any:
    """A pass over a module whose operators are functions already. It adds each weight of `main` to
    `weights`, and, if there is any, a tuple of them to the parameters."""

    def run(module: IRModule, _: Any) -> IRModule:
        main = module[MAIN]
        constants = _constants(main)
        if not constants:
            return module
        parameter = relax.Var("weights", relax.TupleType([each.ty for each in constants]))
        body = _TakingOut(parameter, constants).visit_expr(main.body)
        changed = relax.Function([*main.params, parameter], body, main.ret_ty, attrs=main.attrs)
        made = IRModule(dict(module.functions), attrs=module.attrs)
        made.update_func(module.get_global_var(MAIN), changed)
        weights.extend(each.value.numpy() for each in constants)
        return relax.transform.Normalize()(made)

    return module_pass(run, opt_level=0, name="TilewrightWeights")


def _constants(function: Any) -> Sequence[Any]:
    """Those that are taken out, each once."""
    found: dict[Any, None] = {}

    def visit(node: Any) -> None:
        if isinstance(node, GenericConst) and _is_taken(node):
            found[node] = None

    relax.analysis.post_order_visit(function.body, visit)
    return list(found)


def _is_taken(constant: Any) -> bool:
    tensor = constant.value
    size = int(np.prod(tensor.shape)) * np.dtype(str(tensor.dtype)).itemsize
    fits = len(tensor.shape) <= MOST_AXES and str(tensor.dtype) in DTYPES
    return size >= LEAST_BYTES and fits


@mutator
class _TakingOut(PyExprMutator):  # type: ignore[misc]
    """Reads constants from a tuple."""

    def __init__(self, parameter: Any, constants: Sequence[Any]) -> None:
        super().__init__()
        self._parameter = parameter
        self._places = {constant: place for place, constant in enumerate(constants)}

    def visit_generic_const_(self, op: Any) -> Any:
        place = self._places.get(op)
        if place is None:
            return op
        return self.builder_.emit(relax.TupleGetItem(self._parameter, place))
