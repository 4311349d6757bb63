"""Move the weights out of a compiled network, so that `main` reads them from its last parameter.

Weights that are part of a library are linked into it, and TVM copies them twice while loading it.
In a separate file, the weights are memory-mapped instead: a page is read when it is first used, and
all processes that run the network share it.
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
"""Minimum size in bytes of an array that is moved out of the library. TVM checks each such array at
every inference, which would slow down a small network noticeably (`python -m
benchmarks.cpu.networks --networks digits_cnn,dlrm_1`)."""


def taking_out(weights: list[Array]) -> Pass:
    """Return a pass that moves the large constants of `main` into an additional parameter.

    The parameter is a tuple of tensors. Equal constants are stored once. The pass expects that the
    operators have already been lowered to TensorIR functions.

    Args:
        weights: list to which the pass appends the constants, in the shapes that kernels read.
    """

    def run(module: IRModule, _: object) -> IRModule:
        main = module[MAIN]
        large_constants = _constants(main)
        if not large_constants:
            return module
        # Unrolled steps share weights, which are stored once.
        first: dict[bytes, RelaxConstant] = {}
        keys = [_content(constant) for constant in large_constants]
        for key, constant in zip(keys, large_constants, strict=True):
            first.setdefault(key, constant)
        place_of = {key: place for place, key in enumerate(first)}
        constants = list(first.values())
        parameter = relax.Var("weights", relax.TupleType([constant.ty for constant in constants]))
        places = {
            constant: place_of[key] for key, constant in zip(keys, large_constants, strict=True)
        }
        body = _TakingOut(parameter, places).visit_expr(main.body)
        changed = relax.Function([*main.params, parameter], body, main.ret_ty, attrs=main.attrs)
        changed_module = IRModule(dict(module.functions), attrs=module.attrs)
        changed_module.update_func(module.get_global_var(MAIN), changed)
        weights.extend(constant.value.numpy() for constant in constants)
        return relax.transform.Normalize()(changed_module)

    return module_pass(run, opt_level=0, name="TilewrightWeights")


def _content(constant: RelaxConstant) -> bytes:
    """Return a digest of a constant's type, shape and values, by which duplicates are found."""
    array = constant.value.numpy()
    head = f"{array.dtype} {array.shape} ".encode()
    return hashlib.sha256(head + memoryview(array).cast("B")).digest()


def _constants(function: RelaxFunction) -> Sequence[RelaxConstant]:
    """Return the constants that are moved out of a function, in order of first use."""
    constants: dict[RelaxConstant, None] = {}

    def visit(node: RelaxExpr) -> None:
        if isinstance(node, GenericConst) and _is_taken(node):
            constants[node] = None

    relax.analysis.post_order_visit(function.body, visit)
    return list(constants)


def _is_taken(constant: RelaxConstant) -> bool:
    tensor = constant.value
    size = int(np.prod(tensor.shape)) * np.dtype(str(tensor.dtype)).itemsize
    fits = len(tensor.shape) <= MOST_AXES and str(tensor.dtype) in DTYPES
    return size >= LEAST_BYTES and fits


@mutator
class _TakingOut(PyExprMutator):  # type: ignore[misc]
    """Relax mutator that replaces constants by elements of a tuple parameter.

    Args:
        parameter: the parameter that holds the constants as a tuple.
        places: index of each replaced constant in the tuple.
    """

    def __init__(self, parameter: RelaxVar, places: Mapping[RelaxConstant, int]) -> None:
        super().__init__()
        self._parameter = parameter
        self._places = places

    def visit_generic_const_(self, op: RelaxConstant) -> RelaxExpr:
        place = self._places.get(op)
        if place is None:
            return op
        return self.builder_.emit(relax.TupleGetItem(self._parameter, place))
