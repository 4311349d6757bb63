"""TVM's lowering of kernels, with one change: what is `local` lies on the stack.

TVM asks its runtime for memory above 1 KiB. A register tile is more than that; LLVM then cannot
know that nobody reads it afterwards, and stores registers that nobody needs.
"""

from __future__ import annotations

from typing import Any

NAME = "tilewright"


def lowering() -> str:
    """The name of the pipeline, for `tvm.compile(..., tir_pipeline=)`, made known to TVM."""
    from tvm.tirx import compilation_pipeline

    compilation_pipeline.register_tir_pipeline(NAME, _pipeline)
    return NAME


def _pipeline() -> Any:
    import tvm
    from tvm.s_tir.pipeline import default_s_tir_pipeline
    from tvm.tirx.transform import prim_func_pass

    usual, host, device = default_s_tir_pipeline()

    def on_the_stack(function: Any, _module: Any, _context: Any) -> Any:
        return function.with_body(_kept(function.body))

    passes = [usual, prim_func_pass(on_the_stack, opt_level=0)]
    return tvm.transform.Sequential(passes), host, device


def _kept(body: Any) -> Any:
    """The statements, with allocations in the scope `local` marked to stay allocations."""
    import tvm_ffi
    from tvm import tirx

    def mark(allocation: Any) -> Any:
        if allocation.buffer.scope() != "local":
            return allocation
        keep = {"disable_lower_builtin": tirx.IntImm("bool", 1)}
        return tirx.AllocBuffer(allocation.buffer, annotations=keep)

    return tvm_ffi.structural_map(body, (tirx.AllocBuffer, mark))
