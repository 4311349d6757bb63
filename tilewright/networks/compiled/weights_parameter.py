"""Takes the weights out of a compiled network: its function reads them from its last parameter.

Weights that are part of a library are linked into it, and TVM copies them twice as it loads it. In
a file of their own they are mapped. A page is read when it is first used, and all processes that
run the network share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax
from tvm.ir import GenericConst, IRModule
from tvm.ir.transform import module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from tilewright.core.tvm_types import Array, Pass, RelaxConstant, RelaxExpr, RelaxFunction, RelaxVar
from tilewright.networks.compiled.loaded_library import MAIN
from tilewright.networks.compiled.weights_file import DTYPES, MOST_AXES

LEAST_BYTES = 1 << 16
"""Of an array that is taken out. TVM looks at each at every inference, which a small network would
feel (`python -m benchmarks.cpu.networks --networks digits_cnn,dlrm_1`)."""


def taking_out(weights: list[Array]) -> Pass:
    """A pass over a module whose operators are functions already. It adds each weight of `main` to
    `weights`, in the shape that kernels read, and a tuple of them to the parameters."""

    def run(module: IRModule, _: object) -> IRModule:
        main = module[MAIN]
        found = _constants(main)
        if not found:
            return module
        first: dict[bytes, RelaxConstant] = {}  # steps that are unrolled have the same weights
        keys = [_content(each) for each in found]
        for key, each in zip(keys, found, strict=True):
            first.setdefault(key, each)
        place_of = {key: place for place, key in enumerate(first)}
        constants = list(first.values())
        parameter = relax.Var("weights", relax.TupleType([each.ty for each in constants]))
        places = {each: place_of[key] for key, each in zip(keys, found, strict=True)}
        body = _TakingOut(parameter, places).visit_expr(main.body)
        changed = relax.Function([*main.params, parameter], body, main.ret_ty, attrs=main.attrs)
        made = IRModule(dict(module.functions), attrs=module.attrs)
        made.update_func(module.get_global_var(MAIN), changed)
        weights.extend(each.value.numpy() for each in constants)
        return relax.transform.Normalize()(made)

    return module_pass(run, opt_level=0, name="TilewrightWeights")


def _content(constant: RelaxConstant) -> bytes:
    """A digest of type, shape and values."""
    array = constant.value.numpy()
    head = f"{array.dtype} {array.shape} ".encode()
    return hashlib.sha256(head + memoryview(array).cast("B")).digest()


def _constants(function: RelaxFunction) -> Sequence[RelaxConstant]:
    """Those that are taken out."""
    found: dict[RelaxConstant, None] = {}

    def visit(node: RelaxExpr) -> None:
        if isinstance(node, GenericConst) and _is_taken(node):
            found[node] = None

    relax.analysis.post_order_visit(function.body, visit)
    return list(found)


def _is_taken(constant: RelaxConstant) -> bool:
    tensor = constant.value
    size = int(np.prod(tensor.shape)) * np.dtype(str(tensor.dtype)).itemsize
    fits = len(tensor.shape) <= MOST_AXES and str(tensor.dtype) in DTYPES
    return size >= LEAST_BYTES and fits


@mutator
class _TakingOut(PyExprMutator):  # type: ignore[misc]
    """Reads constants from their places in a tuple."""

    def __init__(self, parameter: RelaxVar, places: Mapping[RelaxConstant, int]) -> None:
        super().__init__()
        self._parameter = parameter
        self._places = places

    def visit_generic_const_(self, op: RelaxConstant) -> RelaxExpr:
        place = self._places.get(op)
        if place is None:
            return op
        return self.builder_.emit(relax.TupleGetItem(self._parameter, place))
