"""Compares `tilewright.core.tvm_types` with TVM itself, which type checkers cannot read."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest
import tvm
from tvm import te, tirx

from tilewright.core import tvm_types


def imported_names() -> list[tuple[str, str]]:
    """Return module and name of each TVM class that annotations may use."""
    module = ast.parse(Path(tvm_types.__file__).read_text())
    (checked,) = (node for node in module.body if isinstance(node, ast.If))
    return [
        (node.module, alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    ]


@pytest.mark.parametrize(("module", "name"), imported_names())
def test_annotations_name_classes_of_tvm(module: str, name: str) -> None:
    assert isinstance(getattr(import_module(module), name), type)


def members(protocol: type) -> set[str]:
    """Return the methods and properties that a protocol declares."""
    return {
        name
        for base in protocol.__mro__
        if base.__module__ == tvm_types.__name__
        for name, member in vars(base).items()
        if isinstance(member, property)
        or (isinstance(member, FunctionType) and member.__module__ == tvm_types.__name__)
    }


def examples() -> list[tuple[type, object]]:
    """Return protocols, each with a value that implements it."""
    data = te.placeholder((4,), name="data")
    out = te.compute((4,), lambda i: data[i] + 1.0, name="out")
    function = te.create_prim_func([data, out])
    return [
        (tvm_types.Expression, tirx.Var("x", "float32")),
        (tvm_types.Expression, 1),
        (tvm_types.Expression, 0.5),
        (tvm_types.TirBuffer, tirx.decl_buffer((4,), "float32")),
        (tvm_types.TirBuffer, function.params[0]),
        (tvm_types.Tensor, out),
        (tvm_types.PrimFunc, function),
    ]


@pytest.mark.parametrize(("protocol", "value"), examples())
def test_values_of_tvm_have_what_the_protocols_declare(protocol: type, value: object) -> None:
    declared = members(protocol)
    assert len(declared) > 5
    assert [name for name in declared if not hasattr(value, name)] == []


def test_an_expression_of_two_is_an_expression() -> None:
    total = 2 * tirx.Var("x", "int32") + 1
    assert isinstance(total, tvm.ir.Expr)
    assert [name for name in members(tvm_types.Expression) if not hasattr(total, name)] == []
