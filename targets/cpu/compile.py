"""One config → the bytes of a shared library, and what compiling it revealed; or a typed failure.

Runs in processes of its own (`targets.cpu.compile_pool`): LLVM is single-threaded a module.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from targets.cpu.hidden import hidden_features
from targets.cpu.kernels.kernel import DoesNotApply, Values
from targets.cpu.kernels.known import kernel_for
from targets.cpu.spec import CpuSpec
from targets.workload import Workload

FUNCTION = "tilewright_kernel"
MAX_CODE_BYTES = 1 << 20


@dataclass(frozen=True)
class Compiled:
    """`library` is a shared object with the function `FUNCTION`, `hidden` a value a column of
    `targets.cpu.hidden.COLUMNS`; or `failure` and `reason` say why there is none."""

    library: bytes = b""
    hidden: tuple[float, ...] = ()
    failure: str = ""
    reason: str = ""


def llvm_target(spec: CpuSpec) -> Any:
    """TVM's target for a processor."""
    import tvm

    host = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target(
        {"kind": "llvm", "mcpu": spec.mcpu or host, "num-cores": spec.threads}
    )


def scheduled(workload: Workload, spec: CpuSpec, values: Values) -> Any:
    """The TensorIR function of a config. Raises `DoesNotApply`."""
    from tvm.s_tir import ScheduleError

    kernel = kernel_for(workload)
    function = kernel.define(workload, spec, values)
    try:
        return kernel.schedule(function, workload, spec, values)
    except ScheduleError as error:
        raise DoesNotApply(str(error).strip().splitlines()[0]) from None


def compile_config(workload: Workload, spec: CpuSpec, values: Values) -> Compiled:
    """Never raises for a config that cannot be compiled."""
    import tvm

    try:
        function = scheduled(workload, spec, values)
    except DoesNotApply as error:
        return Compiled(failure=error.failure, reason=f"schedule: {error}")
    try:
        module = tvm.compile(
            tvm.IRModule({FUNCTION: function.with_attr("global_symbol", FUNCTION)}),
            target=llvm_target(spec),
        ).mod
        assembly = module.inspect_source("asm")
    except Exception as error:  # TVM raises many kinds
        return Compiled(failure="compile", reason=f"compile: {_first_line(error)}")
    hidden = hidden_features(function, assembly)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        module.export_library(str(path), options=["-s", "-Wl,--build-id=none"])
        library = path.read_bytes()
    if len(library) > MAX_CODE_BYTES:
        reason = f"link: {len(library)} bytes of code, at most {MAX_CODE_BYTES} are tried"
        return Compiled(failure="code_too_large", reason=reason)
    return Compiled(library, hidden)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
