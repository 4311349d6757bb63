"""Compiles one config to the bytes of a shared library and its hidden features, or a typed failure.

Runs in processes of their own (`targets.cpu.compile_pool`): LLVM may take long, or end its process.

Kernels are lowered as TVM does, with two changes: `local` tensors lie on the stack, which is
aligned. TVM asks its runtime for memory above 1 KiB. A register tile is more than that. LLVM then
cannot know that nobody reads it afterwards, and stores registers that nobody needs.

LLVM aligns the stack for the tensors that lie there, not for registers that it stores there later.
A vector of 64 bytes may then begin in one page and end in another. Where the stack begins differs
between processes: one in thirty ran a convolution at 0.35 of its speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import (
    AllocBuffer,
    AttrStmt,
    For,
    IRModule,
    Pass,
    PrimFunc,
    Statement,
    TvmTarget,
)
from tilewright.targets.cpu import machine
from tilewright.targets.cpu.assembly import LinkFailed, link
from tilewright.targets.cpu.hidden_features import hidden_features
from tilewright.targets.cpu.kernels.kernel import DoesNotApply, KnobValues
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.spec import ARM_DOTS, DOTS_BFLOAT16, CpuSpec
from tilewright.targets.workload import Workload

s_tir = lazy_module("tvm.s_tir")
tvm = lazy_module("tvm")
codegen = lazy_module("tvm.target.codegen")
tvm_ffi = lazy_module("tvm_ffi")
tirx = lazy_module("tvm.tirx")
s_tir_pipeline = lazy_module("tvm.s_tir.pipeline")
compilation_pipeline = lazy_module("tvm.tirx.compilation_pipeline")
transform = lazy_module("tvm.tirx.transform")

FUNCTION = "tilewright_kernel"
MAX_CODE_BYTES = 1 << 20


@dataclass(frozen=True)
class Compiled:
    """`library` is a shared object with the function `FUNCTION`, `hidden` a value a column of
    `targets.cpu.hidden_features.COLUMNS`; or `failure` and `reason` say why there is none."""

    library: bytes = b""
    hidden: tuple[float, ...] = ()
    failure: str = ""
    reason: str = ""


def llvm_target(spec: CpuSpec) -> TvmTarget:
    """TVM's target for a processor."""
    host = "generic" if spec.triple else tvm.get_global_func("target.llvm_get_system_cpu")()
    about: dict[str, str | int] = {
        "kind": "llvm",
        "mcpu": spec.mcpu or host,
        "num-cores": spec.threads,
    }
    if spec.triple:
        about["mtriple"] = spec.triple
    features: list[str] = []
    if not (spec.mcpu or spec.triple):
        features += machine.corrections(codegen.llvm_get_cpu_features(tvm.target.Target(about)))
    # Not every processor of that family has them, and LLVM knows not every AArch64 by name.
    if spec.dots and (spec.mcpu or spec.dots == ARM_DOTS):
        features.append(f"+{spec.dots}")
    if spec.bfloat16 == DOTS_BFLOAT16:
        features.append(f"+{DOTS_BFLOAT16}")
    if spec.tiles:
        features += [f"+{name}" for name in ("amx-tile", *spec.tiles)]
    return tvm.target.Target(about | {"mattr": features} if features else about)


def scheduled(workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
    """The TensorIR function of a config. Raises `DoesNotApply`."""
    kernel = kernel_for(workload, spec)
    function = kernel.define(workload, spec, values)
    try:
        return kernel.schedule(function, workload, spec, values)
    except s_tir.ScheduleError as error:
        raise DoesNotApply(str(error).strip().splitlines()[0]) from None


def assembly_of(function: PrimFunc, target: TvmTarget) -> str:
    """LLVM's text of a scheduled function, which is called `FUNCTION` there. LLVM generates code
    once, here. Raises what TVM raises."""
    module = tvm.IRModule({FUNCTION: function.with_attr("global_symbol", FUNCTION)})
    compiled = tvm.compile(module, target=target, tir_pipeline=lowering())
    return str(compiled.mod.inspect_source("asm"))


class Compiler:
    """Of one process. Schedules that are the same, from whatever configs, are compiled once."""

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[PrimFunc, Compiled]]] = {}

    def compile(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> Compiled:
        """Never raises for a config that cannot be compiled."""
        try:
            function = scheduled(workload, spec, values)
        except DoesNotApply as error:
            return Compiled(failure=error.failure, reason=f"schedule: {error}")
        except Exception as error:  # TVM raises many kinds
            return Compiled(failure="schedule", reason=f"schedule: {_first_line(error)}")
        same = self._known.setdefault(int(tvm_ffi.structural_hash(function)), [])
        for known, compiled in same:
            if tvm_ffi.structural_equal(known, function):
                return compiled
        found = compile_function(function, spec)
        same.append((function, found))
        return found


def compile_function(function: PrimFunc, spec: CpuSpec) -> Compiled:
    """Of a scheduled TensorIR function. Never raises for one that cannot be compiled."""
    target = llvm_target(spec)
    try:
        assembly = assembly_of(function, target)
    except Exception as error:  # TVM raises many kinds
        return Compiled(failure="compile", reason=f"compile: {_first_line(error)}")
    try:
        library = link(assembly)
    except LinkFailed as error:
        return Compiled(failure="link", reason=f"link: {error}")
    if len(library) > MAX_CODE_BYTES:
        reason = f"link: {len(library)} bytes of code, at most {MAX_CODE_BYTES} are tried"
        return Compiled(failure="code_too_large", reason=reason)
    return Compiled(library, hidden_features(function, target, assembly, len(library)))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


# -- lowering ----------------------------------------------------------------------------------


PIPELINE = "tilewright"
_ALIGN = "tilewright_align_stack"
_ALIGNING_FUNCTION = f"""
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
    """The name of the s_tir_pipeline, for `tvm.compile(..., tir_pipeline=)`, made known to TVM."""
    compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline)
    return PIPELINE


def _pipeline() -> tuple[Pass, Pass, Pass]:
    usual, host, device = s_tir_pipeline.default_s_tir_pipeline()

    def with_stack(function: PrimFunc, _module: IRModule, _context: object) -> PrimFunc:
        return function.with_body(_aligned(_kept(function.body)))

    passes = [usual, transform.prim_func_pass(with_stack, opt_level=0)]
    return tvm.transform.Sequential(passes), host, device


def _kept(body: Statement) -> Statement:
    """The statements, with allocations in the scope `local` marked to stay allocations."""

    def mark(allocation: AllocBuffer) -> Statement:
        if allocation.buffer.scope() != "local":
            return allocation
        keep = {"disable_lower_builtin": tirx.IntImm("bool", 1)}
        return tirx.AllocBuffer(allocation.buffer, annotations=keep)

    return tvm_ffi.structural_map(body, (tirx.AllocBuffer, mark))


def _aligned(body: Statement) -> Statement:
    """The statements, with the stack aligned in each function that LLVM will see: the one that
    computes, and one for each parallel loop."""

    def begin(body: Statement) -> Statement:
        return tirx.SeqStmt([tirx.Evaluate(tirx.call_extern("void", _ALIGN)), body])

    def parallel(loop: For) -> Statement:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, begin(loop.body),
            loop.thread_binding, loop.annotations, loop.step,
        )  # fmt: skip

    def scope(attribute: AttrStmt) -> Statement:
        if attribute.attr_key != "compute_scope":
            return attribute
        key, value = attribute.attr_key, attribute.value
        return tirx.AttrStmt(attribute.node, key, value, begin(attribute.body))

    found = tvm_ffi.structural_map(body, [(tirx.For, parallel), (tirx.AttrStmt, scope)])
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", _ALIGNING_FUNCTION, found)
