"""Lowers kernels as TVM does, with two changes: `local` tensors lie on the stack, which is aligned.

TVM asks its runtime for memory above 1 KiB. A register tile is more than that. LLVM then cannot
know that nobody reads it afterwards, and stores registers that nobody needs.

LLVM aligns the stack for the tensors that lie there, not for registers that it stores there later.
A vector of 64 bytes may then begin in one page and end in another. Where the stack begins differs
between processes: one in thirty ran a convolution at 0.35 of its speed.
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
_ALIGN = "tilewright_align_stack"
_FUNCTION = f"""
define void @{_ALIGN}() alwaysinline {{
  %line = alloca i8, align 64
  call void asm sideeffect "", "*m"(ptr elementtype(i8) %line)
      nounwind willreturn memory(inaccessiblemem: readwrite)
  ret void
}}
"""
"""Has a tensor on the stack of the function that calls it, and no instruction. What LLVM is told of
the empty one lets it move loads out of loops around it."""


def lowering() -> str:
    """The name of the pipeline, for `tvm.compile(..., tir_pipeline=)`, made known to TVM."""
    compilation_pipeline.register_tir_pipeline(NAME, _pipeline)
    return NAME


def _pipeline() -> Any:
    usual, host, device = pipeline.default_s_tir_pipeline()

    def with_stack(function: Any, _module: Any, _context: Any) -> Any:
        return function.with_body(_aligned(_kept(function.body)))

    passes = [usual, transform.prim_func_pass(with_stack, opt_level=0)]
    return tvm.transform.Sequential(passes), host, device


def _kept(body: Any) -> Any:
    """The statements, with allocations in the scope `local` marked to stay allocations."""

    def mark(allocation: Any) -> Any:
        if allocation.buffer.scope() != "local":
            return allocation
        keep = {"disable_lower_builtin": tirx.IntImm("bool", 1)}
        return tirx.AllocBuffer(allocation.buffer, annotations=keep)

    return tvm_ffi.structural_map(body, (tirx.AllocBuffer, mark))


def _aligned(body: Any) -> Any:
    """The statements, with the stack aligned in each function that LLVM will see: the one that
    computes, and one for each parallel loop."""

    def begin(body: Any) -> Any:
        return tirx.SeqStmt([tirx.Evaluate(tirx.call_extern("void", _ALIGN)), body])

    def parallel(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, begin(loop.body),
            loop.thread_binding, loop.annotations, loop.step,
        )  # fmt: skip

    def scope(attribute: Any) -> Any:
        if attribute.attr_key != "compute_scope":
            return attribute
        key, value = attribute.attr_key, attribute.value
        return tirx.AttrStmt(attribute.node, key, value, begin(attribute.body))

    found = tvm_ffi.structural_map(body, [(tirx.For, parallel), (tirx.AttrStmt, scope)])
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", _FUNCTION, found)
