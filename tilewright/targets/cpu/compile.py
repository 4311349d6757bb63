"""Compiles one config to a shared library and its hidden features, or returns a typed failure.

This code runs in child processes (`targets.cpu.compile_pool`), because LLVM may take long or
terminate its process.

Kernels are lowered by TVM's own pipeline with two changes:

- Tensors in the scope `local` are allocated on the stack. TVM would request tensors above 1 KiB,
  such as the sums of a register tile, from its runtime. LLVM could then not know that nobody reads
  the memory afterwards, and would store registers needlessly.
- The stack is aligned to 64 bytes. LLVM aligns it for tensors, but not for registers that it spills
  to the stack later, and a spilled vector of 64 bytes may then cross a page boundary. The start of
  the stack differs between processes: without the alignment, one process in thirty ran a
  convolution at 0.35 of its speed.
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
"""Name of the function that the library of a kernel defines."""
MAX_CODE_BYTES = 1 << 20
"""Maximum size of a kernel's library in bytes. A config with a larger library fails with
`code_too_large`."""


@dataclass(frozen=True)
class Compiled:
    """Result of compiling one config.

    Attributes:
        library: bytes of a shared object that defines the function `FUNCTION`; empty on failure.
        hidden: one value per column of `targets.cpu.hidden_features.COLUMNS`; empty on failure.
        failure: class of the failure; "" on success.
        reason: message about the failure; "" on success.
    """

    library: bytes = b""
    hidden: tuple[float, ...] = ()
    failure: str = ""
    reason: str = ""


def llvm_target(spec: CpuSpec) -> TvmTarget:
    """Return TVM's target for a processor.

    Args:
        spec: the processor.
    """
    # Code for another kind of machine must not assume this machine's instructions.
    default_cpu = "generic" if spec.triple else tvm.get_global_func("target.llvm_get_system_cpu")()
    attributes: dict[str, str | int] = {
        "kind": "llvm",
        "mcpu": spec.mcpu or default_cpu,
        "num-cores": spec.threads,
    }
    if spec.triple:
        attributes["mtriple"] = spec.triple
    features: list[str] = []
    if not (spec.mcpu or spec.triple):
        features += machine.corrections(
            codegen.llvm_get_cpu_features(tvm.target.Target(attributes))
        )
    # Not every processor with this `mcpu` has dot products, and LLVM does not know every AArch64.
    if spec.dots and (spec.mcpu or spec.dots == ARM_DOTS):
        features.append(f"+{spec.dots}")
    if spec.bfloat16 == DOTS_BFLOAT16:
        features.append(f"+{DOTS_BFLOAT16}")
    if spec.tiles:
        features += [f"+{name}" for name in ("amx-tile", *spec.tiles)]
    return tvm.target.Target(attributes | {"mattr": features} if features else attributes)


def scheduled(workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
    """Build the TensorIR function of a config: the kernel's computation with the config's schedule.

    Args:
        workload: the workload.
        spec: the processor.
        values: the config, as knob values by knob name.

    Returns:
        The scheduled function.

    Raises:
        DoesNotApply: the config does not select a valid schedule.
    """
    kernel = kernel_for(workload, spec)
    function = kernel.define(workload, spec, values)
    try:
        return kernel.schedule(function, workload, spec, values)
    except s_tir.ScheduleError as error:
        raise DoesNotApply(str(error).strip().splitlines()[0]) from None


def assembly_of(function: PrimFunc, target: TvmTarget) -> str:
    """Compile a scheduled function to assembly text.

    LLVM generates code only here: the library is assembled from this text, and instructions are
    counted in it. Exceptions of TVM are not caught.

    Args:
        function: the function. It is called `FUNCTION` in the assembly.
        target: TVM's target.

    Returns:
        The assembly text.
    """
    module = tvm.IRModule({FUNCTION: function.with_attr("global_symbol", FUNCTION)})
    executable = tvm.compile(module, target=target, tir_pipeline=lowering())
    return str(executable.mod.inspect_source("asm"))


class Compiler:
    """Compiler of one process, which compiles each distinct schedule once.

    Different configs may select the same schedule. Such configs share one result.
    """

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[PrimFunc, Compiled]]] = {}

    def compile(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> Compiled:
        """Compile a config. Failures are returned, not raised.

        Args:
            workload: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.

        Returns:
            The library and hidden features, or the failure.
        """
        try:
            function = scheduled(workload, spec, values)
        except DoesNotApply as error:
            return Compiled(failure=error.failure, reason=f"schedule: {error}")
        except Exception as error:  # TVM raises exceptions of many types
            return Compiled(failure="schedule", reason=f"schedule: {_first_line(error)}")
        same_hash = self._known.setdefault(int(tvm_ffi.structural_hash(function)), [])
        for known, compiled in same_hash:
            # Different functions may have the same hash.
            if tvm_ffi.structural_equal(known, function):
                return compiled
        result = compile_function(function, spec)
        same_hash.append((function, result))
        return result


def compile_function(function: PrimFunc, spec: CpuSpec) -> Compiled:
    """Compile a scheduled TensorIR function. Failures are returned, not raised.

    Args:
        function: the function.
        spec: the processor.

    Returns:
        The library and hidden features, or the failure.
    """
    target = llvm_target(spec)
    try:
        assembly = assembly_of(function, target)
    except Exception as error:  # TVM raises exceptions of many types
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
"""Name under which Tilewright's lowering pipeline is registered with TVM."""
_ALIGN = "tilewright_align_stack"
_ALIGNING_FUNCTION = f"""
define void @{_ALIGN}() alwaysinline {{
  %line = alloca i8, align 64
  call void asm sideeffect "", "*m"(ptr elementtype(i8) %line)
      nounwind willreturn memory(inaccessiblemem: readwrite)
  ret void
}}
"""
"""LLVM IR of a function that makes LLVM align the caller's stack to 64 bytes.

LLVM inlines the function. Its only effect is a variable on the caller's stack that requires the
alignment; it executes no instructions. The attributes of the empty assembly statement allow LLVM to
move loads out of loops around the call."""


def lowering() -> str:
    """Register the lowering pipeline with TVM and return its name.

    Pass the name to TVM as `tvm.compile(..., tir_pipeline=)`.
    """
    compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline)
    return PIPELINE


def _pipeline() -> tuple[Pass, Pass, Pass]:
    usual, host, device = s_tir_pipeline.default_s_tir_pipeline()

    def with_stack(function: PrimFunc, _module: IRModule, _context: object) -> PrimFunc:
        return function.with_body(_align_stack(_keep_local_allocations(function.body)))

    passes = [usual, transform.prim_func_pass(with_stack, opt_level=0)]
    return tvm.transform.Sequential(passes), host, device


def _keep_local_allocations(body: Statement) -> Statement:
    """Mark allocations in the scope `local`, so that TVM leaves them on the stack."""

    def mark(allocation: AllocBuffer) -> Statement:
        if allocation.buffer.scope() != "local":
            return allocation
        keep = {"disable_lower_builtin": tirx.IntImm("bool", 1)}
        return tirx.AllocBuffer(allocation.buffer, annotations=keep)

    return tvm_ffi.structural_map(body, (tirx.AllocBuffer, mark))


def _align_stack(body: Statement) -> Statement:
    """Insert a call that aligns the stack into each function that LLVM compiles.

    LLVM compiles the kernel's function itself and one more function per parallel loop.
    """

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

    result = tvm_ffi.structural_map(body, [(tirx.For, parallel), (tirx.AttrStmt, scope)])
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", _ALIGNING_FUNCTION, result)
