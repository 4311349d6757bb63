"""Finds attentions among a network's calls, and lets one function run each.

Two batched products with a softmax between them keep the scores of all heads in memory. One
function (`networks.compiled.attention_function`) keeps those of some rows in a cache.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import relax
from tvm.ir import Call, IRModule
from tvm.ir.transform import module_pass

from tilewright.networks.compiled.attention_function import (
    DATA,
    OUT,
    WEIGHTS,
    AttentionProduct,
    RowsBetween,
    joined_function,
)
from tilewright.networks.compiled.rewrite import KERNEL, Rewritten
from tilewright.targets.capabilities import CompilesKernels

WORTH = 1 << 22
"""Bytes of all scores in float32. With fewer, products one after the other take as long
(measured)."""
CALL_TIR, RESHAPE = "relax.call_tir", "relax.reshape"


class JoinedAttention:
    """Joins attentions of a rewritten network. Afterwards `functions` has what runs an
    attention, by the number of the layer of its second product, and `scores` that number by the one
    of the first."""

    def __init__(self, rewritten: Rewritten, compiles: CompilesKernels) -> None:
        self._rewritten, self._compiles = rewritten, compiles
        self.functions: dict[int, str] = {}
        self.scores: dict[int, int] = {}

    def joining(self, lanes: int) -> Any:
        """The pass, over a module whose operators are functions already; vectors hold so many
        float32 numbers."""

        def run(module: IRModule, _: Any) -> IRModule:
            return self._joined(module, lanes)

        return module_pass(run, opt_level=0, name="TilewrightAttention")

    def _joined(self, module: IRModule, lanes: int) -> IRModule:
        calls = _Calls(module, self._rewritten)
        builder = relax.BlockBuilder(module)
        made: dict[Any, Any] = {}
        new: dict[Any, Any] = {}
        for var in calls.layers:
            found = calls.attention(var)
            if found is None:
                continue
            if found.functions not in made:
                function = joined_function(
                    found.scores, found.between, found.values, self._compiles, lanes
                )
                if function is not None:
                    name = f"attention_{len(made)}"
                    function = builder.add_func(function.with_attr(KERNEL, 1), name)
                made[found.functions] = function
            if (function := made[found.functions]) is not None:
                new[var] = relax.call_tir(function, relax.Tuple(found.arguments), var.ty)
                number = calls.layers[var]
                self.functions[number] = str(function.name_hint)
                self.scores[calls.layers[found.first]] = number
        return _replaced(builder.get(), new) if new else module


@dataclass(frozen=True, eq=False)
class _Attention:
    """The parts of one attention, the variable that its first product gives, what the joined
    function is given, and what tells that function from others."""

    scores: AttentionProduct
    between: RowsBetween
    values: AttentionProduct
    first: Any
    arguments: list[Any]
    functions: tuple[Any, ...]


class _Calls:
    """What `main` calls. `layers` has the numbers of layers by the variables of their results."""

    def __init__(self, module: IRModule, rewritten: Rewritten) -> None:
        self._module = module
        body = module["main"].body
        self._values = {
            binding.var: binding.value for block in body.blocks for binding in block.bindings
        }
        self._readers = Counter(_variables(body.body))
        for value in self._values.values():
            self._readers.update(_variables(value))
        kernels = [var for var, value in self._values.items() if self._is_kernel(value)]
        self.layers = {var: number for number, var in enumerate(kernels)}
        if len(kernels) != len(rewritten.layers):  # calls that nothing needed are gone
            self.layers = {}
        self._about = {
            name: (layer.workload, dict(moved))
            for name, layer, moved in zip(
                rewritten.called, rewritten.layers, rewritten.moved, strict=True
            )
        }

    def attention(self, result: Any) -> _Attention | None:
        """That whose second product gives `result`; None where something else does."""
        values = self._product(result)
        if values is None:
            return None
        softmax, *_ = given = self._given(result)
        between = self._before(softmax)
        if between is None or self._is_kernel(self._values[between]):
            return None
        others = self._given(between)
        for place, argument in enumerate(others):
            first = self._before(argument)
            scores = None if first is None else self._product(first)
            if scores is not None and _fit(scores, values):
                del others[place]
                called = [self._values[var].args[0] for var in (first, between, result)]
                return _Attention(
                    scores, RowsBetween(self._module[called[1]], place), values, first,
                    [*self._given(first), *others, *given[WEIGHTS:]], tuple(called),
                )  # fmt: skip
        return None

    def _is_kernel(self, value: Any) -> bool:
        return _is_call(value) and KERNEL in (self._module[value.args[0]].attrs or {})

    def _given(self, var: Any) -> list[Any]:
        """What the call that gives a variable is given."""
        return list(self._values[var].args[1].fields)

    def _before(self, var: Any) -> Any:
        """The call that gives a variable, with another shape perhaps, if nothing else reads it."""
        while (value := self._values.get(var)) is not None and self._readers[var] == 1:
            if _is_call(value):
                return var
            if not (isinstance(value, Call) and value.op.name == RESHAPE):
                return None
            var = value.args[0]
        return None

    def _product(self, var: Any) -> AttentionProduct | None:
        """A batched product without an epilogue."""
        value = self._values[var]
        if not self._is_kernel(value):
            return None
        workload, moved = self._about[str(value.args[0].name_hint)]
        known = workload.operator == "batch_matmul" and workload.dtype in ("float32", "bfloat16")
        if not known or workload.epilogue:
            return None
        return AttentionProduct(workload, list(self._module[value.args[0]].params), moved)


def _fit(scores: AttentionProduct, values: AttentionProduct) -> bool:
    """Whether the second product may multiply what is made of the first, and should."""
    one, other = scores.workload, values.workload
    made = one.batch, one.height, one.out_channels
    unmoved = OUT not in scores.moved and DATA not in values.moved
    large = one.dtype == "bfloat16" or 4 * one.batch * one.height * one.out_channels > WORTH
    fit = made == (other.batch, other.height, other.in_channels) and one.dtype == other.dtype
    return fit and unmoved and large


def _replaced(module: IRModule, new: dict[Any, Any]) -> IRModule:
    """A module whose `main` has new values of variables, without what nothing calls any more."""
    old = module["main"]
    blocks = [
        type(block)([
            relax.VarBinding(binding.var, new[binding.var]) if binding.var in new else binding
            for binding in block.bindings
        ])
        for block in old.body.blocks
    ]  # fmt: skip
    body = relax.SeqExpr(blocks, old.body.body)
    module["main"] = relax.Function(old.params, body, old.ret_ty, old.is_pure, old.attrs)
    return relax.transform.DeadCodeElimination()(module)


def _is_call(value: Any) -> bool:
    return isinstance(value, Call) and value.op.name == CALL_TIR


def _variables(value: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (relax.Var, found.append))
    return found
