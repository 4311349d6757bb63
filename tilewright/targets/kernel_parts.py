"""A numba compiler for functions that only other compiled functions call: the parts of a kernel.

By default, numba optimises every function, together with all the functions that it calls, as soon
as the function is compiled, and generates machine code for the result. A function that is nested
eight calls deep is therefore optimised eight times, and only the last result is ever executed. The
compiler in this module leaves a part as plain LLVM code; the kernel that calls it optimises all of
its parts at once.

The compiler is passed to numba's decorators as the option `pipeline_class`.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, PassManager
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.typed_passes import (
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    InlineInlinables,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)


class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """LLVM code of a function that only compiled functions call, and of its callees.

    The code stays as numba generated it. The kernel that calls the function optimises it.
    """

    def _optimize_functions(self, module: Any) -> None:
        """Skip numba's optimisation of single functions, which the calling kernel does later.

        Only the data layout is set, because modules that are linked need the same layout.

        Args:
            module: the LLVM module of the function.
        """
        module.data_layout = str(self.codegen.target_data)

    def _optimize_final_module(self) -> None:
        """Skip numba's optimisation of the whole module, which the calling kernel does later."""

    def _finalize_final_module(self) -> None:
        """Skip the generation of machine code, which the calling kernel does later."""
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=False)
class _RegisterPart(LoweringPass):  # type: ignore[misc]
    """Compiler pass that registers a compiled part of a kernel, so that callers can link it."""

    _name = "register_part"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        # numba needs a built-in function as the key of a part, which it never calls. The bound
        # method of a new object is a unique key.
        entry_point = object().__dir__
        result = state["cr"]
        state.targetctx.insert_user_function(entry_point, result.fndesc, [state.library])
        state["cr"] = result._replace(cfunc=entry_point)
        return True


PASSES = (
    TranslateByteCode,
    FixupArgs,
    IRProcessing,
    RewriteSemanticConstants,
    DeadBranchPrune,
    GenericRewrites,
    InlineInlinables,
    ReconstructSSA,
    DeadBranchPrune,
    NopythonTypeInference,
    PreLowerStripPhis,
    IRLegalization,
    NativeLowering,
    _RegisterPart,
    NoPythonBackend,
)
"""Compiler passes for kernel parts: passes of numba's `DefaultPassBuilder` in its order, and a pass
that registers the part.

Passes for language features that no part uses are left out: closures, comprehensions, `with`,
`literal_unroll`, array expressions, and errors with computed messages."""


class PartCompiler(CompilerBase):  # type: ignore[misc]
    """Compiler for the parts of a kernel: functions that only other compiled functions call."""

    def define_pipelines(self) -> list[Any]:
        """Return the compiler passes for a part of a kernel, and set up the part's code library."""
        name = self.state.func_id.func_qualname
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), name)
        self.state.flags.no_compile = True
        passes = PassManager("part of a kernel")
        for part_pass in PASSES:
            passes.add_pass(part_pass, part_pass.__name__)
        passes.finalize()
        return [passes]
