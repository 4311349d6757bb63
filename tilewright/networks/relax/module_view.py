"""Reads a Relax module that somebody else made, for the extraction of integer layers.

TVM's own ONNX importer leaves no names. Operators get the names of the variables they are bound to,
which is what `mod.show()` prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import relax, topi
from tvm.ir import IRModule

from tilewright.networks.errors import DynamicShapeError, ImportFailedError, QuantisationError
from tilewright.networks.relax.bindings import Binding, FlatGraph, flatten, shape_of
from tilewright.networks.relax.constants import value_of
from tilewright.networks.relax.op_patterns import DEQUANTISE, QUANTISE

CALL_TIR = "relax.call_tir"
BIND = "bind them first: relax.transform.BindParams('main', params)(mod)"


@dataclass(frozen=True, eq=False)
class ModuleView:
    """A flat view of `main`, the kind of each operator in it by its name, and names for its
    results; `is_tuple` where they come as a tuple, be it of one."""

    flat: FlatGraph
    types: dict[str, str]
    outputs: tuple[str, ...]
    is_tuple: bool


def view_of(module: IRModule) -> ModuleView:
    """The view of a quantised module whose weights are constants.

    Raises `ImportFailedError` for one without a `main` of tensors or with open weights,
    `DynamicShapeError` for inputs of unknown shape, and `QuantisationError` for a float one.
    """
    main = module["main"] if "main" in [g.name_hint for g in module.get_global_vars()] else None
    if not isinstance(main, relax.Function):
        raise ImportFailedError(
            "the module has no Relax function 'main'; give what from_onnx or from_exported_program "
            "makes"
        )
    count = int(main.attrs.get("num_input", len(main.params))) if main.attrs else len(main.params)
    _check_parameters(main.params, count)
    flat = flatten(module, main.params[:count], _names(main))
    flat = _with_clips(_with_result(flat))
    if not any(binding.op in (QUANTISE, DEQUANTISE) for binding in flat.bindings):
        raise QuantisationError(
            "the module computes in float and the accelerator in int8; quantise the ONNX model "
            "first (tilewright.networks.quantise.quantise), save it with onnx.save and import "
            "that: docs/guides/quantise.md"
        )
    types = {b.node: b.op.removeprefix("relax.") for b in flat.bindings}
    fields = _fields(main.body.body)
    names = tuple(f"output{i}" for i in range(1 if fields is None else len(fields)))
    return ModuleView(flat, types, names, fields is not None)


def _check_parameters(params: Sequence[Any], count: int) -> None:
    if len(params) > count:
        raise ImportFailedError(
            f"'{params[count].name}' and {len(params) - count - 1} more of main's parameters are "
            f"weights without values; {BIND}"
        )
    for param in params:
        if not hasattr(param.ty, "dtype"):
            raise ImportFailedError(
                f"the input '{param.name}' is not a tensor; import the model again"
            )
        if shape_of(param) is None:
            raise DynamicShapeError(
                f"the shape of input '{param.name}' is unknown before the module runs; fix it: "
                f"from_onnx(model, shape_dict={{'{param.name}': [1, ...]}})"
            )


def _names(main: Any) -> dict[Any, str]:
    """A name for each variable that is bound, its own unless another has that."""
    taken: set[str] = {str(param.name) for param in main.params}
    found = {}
    for block in main.body.blocks:
        for binding in block.bindings:
            name, count = str(binding.var.name), 1
            while name in taken:
                count += 1
                name = f"{binding.var.name}_{count}"
            taken.add(name)
            found[binding.var] = name
    return found


def _fields(result: Any) -> list[Any] | None:
    """The types of a tuple's fields; None for a tensor. Raises `ImportFailedError` for others."""
    fields = list(result.ty.fields) if isinstance(result.ty, relax.TupleType) else None
    if not all(hasattr(ty, "dtype") for ty in ([result.ty] if fields is None else fields)):
        raise ImportFailedError(
            "main gives something else than a tensor or a tuple of tensors; export the model with "
            "plain tensors as outputs"
        )
    return fields


def _with_result(flat: FlatGraph) -> FlatGraph:
    """A tuple that stands in the return statement itself, as one more binding."""
    body = flat.module["main"].body.body
    if not isinstance(body, relax.Tuple):
        return flat
    result = Binding(body, body, "Tuple", (), "")
    return FlatGraph(flat.module, [*flat.bindings, result], flat.data)


def _with_clips(flat: FlatGraph) -> FlatGraph:
    """`relax.clip` where TVM's importer writes a maximum and a minimum in TIR."""
    clips = {clip.var: (inner, clip) for inner, clip in _clips(flat)}
    gone = {inner.var for inner, _ in clips.values() if flat.sole_user(inner.var) is not None}
    bindings = [
        clips[b.var][1] if b.var in clips else b for b in flat.bindings if b.var not in gone
    ]
    return FlatGraph(flat.module, bindings, flat.data)


def _clips(flat: FlatGraph) -> Iterator[tuple[Binding, Binding]]:
    """Maxima, each with the clip to put in the place of the minimum behind it."""
    for outer in flat.bindings:
        upper = _elementwise(flat, outer, topi.minimum)
        inner = None if upper is None else flat.by_var.get(upper[0])
        lower = None if inner is None else _elementwise(flat, inner, topi.maximum)
        if upper is not None and inner is not None and lower is not None:
            clip = relax.BlockBuilder().normalize(relax.op.clip(lower[0], lower[1], upper[1]))
            yield inner, replace(outer, value=clip, op="relax.clip", args=tuple(clip.args))


def _elementwise(flat: FlatGraph, binding: Binding, compute: Any) -> tuple[Any, float] | None:
    """The operand and the number that a TIR call computes `compute` of; None for other calls."""
    if binding.op != CALL_TIR or len(binding.args[1].fields) != 2:
        return None
    x, number = binding.args[1].fields
    bound = value_of(flat, number)
    if bound is None or bound.size != 1 or shape_of(x) != binding.shape or not binding.shape:
        return None
    builder = relax.BlockBuilder()
    call = builder.call_te(compute, relax.Var("x", x.ty), relax.Var("number", number.ty))
    wanted = builder.get()[call.args[0]]
    if not tvm_ffi.structural_equal(flat.module[binding.args[0]], wanted):
        return None
    return x, float(bound.ravel()[0])
