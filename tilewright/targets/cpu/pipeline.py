"""Lowers kernels as TVM does, with one change: what is `local` lies on the stack.

TVM asks its runtime for memory above 1 KiB. A register tile is more than that. LLVM then cannot
know that nobody reads it afterwards, and stores registers that nobody needs.
"""

from __future__ import annotations

from typing import Any

from tilewright.core.lazy_module import lazy_module

tirx = lazy_module("tvm.tirx")
pipeline = lazy_module("tvm.s_tir.pipeline")
compilation_pipeline = lazy_module("tvm.tirx.compilation_pipeline")
transform = lazy_module("tvm.tirx.transform")
tvm = lazy_module("tvm")
tvm_ffi = lazy_module("tvm_ffi")

NAME = "tilewright"


def lowering() -> str:
    """The name of the pipeline, for `tvm.compile(..., tir_pipeline=)`, made known to TVM."""
    compilation_pipeline.register_tir_pipeline(NAME, _pipeline)
    return NAME


def _pipeline() -> Any:
    usual, host, device = pipeline.default_s_tir_pipeline()

    def on_the_stack(function: Any, _module: Any, _context: Any) -> Any:
        return function.with_body(_kept(function.body))

    passes = [usual, transform.prim_func_pass(on_the_stack, opt_level=0)]
    return tvm.transform.Sequential(passes), host, device


def _kept(body: Any) -> Any:
    """The statements, with allocations in the scope `local` marked to stay allocations."""

    def mark(allocation: Any) -> Any:
        if allocation.buffer.scope() != "local":
            return allocation
        keep = {"disable_lower_builtin": tirx.IntImm("bool", 1)}
        return tirx.AllocBuffer(allocation.buffer, annotations=keep)

    return tvm_ffi.structural_map(body, (tirx.AllocBuffer, mark))
