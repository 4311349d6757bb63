"""Compiles batches in long-lived processes.

A config that hangs LLVM or ends its process costs itself alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from queue import SimpleQueue

from tilewright.core.child_process import Header, Limits, RpcFailed, RpcNonsense, RpcProcess
from tilewright.core.errors import TilewrightError
from tilewright.targets.cpu.assembly import c_compiler
from tilewright.targets.cpu.compile import Compiled
from tilewright.targets.cpu.hidden_features import COLUMNS
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

COMPILE_SECONDS = 20.0
"""For one config; usual ones take half a second. What takes longer has unrolled too much."""
START_SECONDS = 120.0
"""For a process to load TVM."""
KEPT = 512
"""Configs whose libraries (some 25 KB each) are kept: baselines and winners are lowered again."""
Key = tuple[str, CpuSpec, tuple[tuple[str, int], ...]]


class CompilerDown(TilewrightError):
    """A compiling process does not even start."""


class CompilePool:
    """As many processes as this one may use cores, started when needed, ended with this process.

    `module` is what they run. Batches of several threads share the processes.
    """

    def __init__(
        self,
        workers: int,
        seconds: float = COMPILE_SECONDS,
        module: str = "tilewright.targets.cpu.compile_worker",
    ) -> None:
        self.workers = workers
        self._limits, self._module = Limits(seconds), module
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        for _ in range(workers):
            self._idle.put(_Process(module, self._limits))
        self._known: dict[Key, Compiled] = {}
        self._lock = threading.Lock()

    def compile(
        self, workload: Workload, spec: CpuSpec, batch: Sequence[KnobValues]
    ) -> list[Compiled]:
        """One result a config, in their order; equal configs are compiled once. Raises
        `CompilerMissing` or `CompilerDown`."""
        c_compiler()
        keys = [(workload.id, spec, tuple(sorted(values.items()))) for values in batch]
        asked = dict(zip(keys, batch, strict=True))
        with self._lock:
            found = {key: self._known[key] for key in asked if key in self._known}
        new = {key: values for key, values in asked.items() if key not in found}
        with ThreadPoolExecutor(self.workers) as threads:
            made = threads.map(lambda values: self._one(workload, spec, values), new.values())
            found.update(zip(new, made, strict=True))
        self._keep({key: found[key] for key in new})
        return [found[key] for key in keys]

    def close(self) -> None:
        """End the processes; a later batch starts others."""
        for _ in range(self.workers):
            process = self._idle.get()
            process.stop()
            self._idle.put(process)

    def _one(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> Compiled:
        process = self._idle.get()
        try:
            return process.compile(workload, spec, values)
        finally:
            self._idle.put(process)

    def _keep(self, made: dict[Key, Compiled]) -> None:
        with self._lock:
            self._known.update(made)
            for key in list(self._known)[: max(len(self._known) - KEPT, 0)]:
                del self._known[key]


class _Process(RpcProcess):
    def __init__(self, module: str, limits: Limits) -> None:
        super().__init__(module, (), limits)

    def compile(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> Compiled:
        """Raises `CompilerDown`."""
        if not self.running:
            self._begin()
        question: Header = {
            "call": "compile", "workload": workload.to_json(), "spec": spec.to_json(),
            "values": dict(values),
        }  # fmt: skip
        try:
            header, arrays = self.call(question)
            if "error" in header:
                return Compiled(failure="compile", reason=f"compile: {header.get('message')}")
            found = Compiled(
                arrays["library"].tobytes(), tuple(arrays["hidden"].tolist()),
                str(header["failure"]), str(header["reason"]),
            )  # fmt: skip
            if not found.failure and len(found.hidden) != len(COLUMNS):
                raise RpcNonsense("the compiler answered with other features")
        except RpcFailed as error:
            return Compiled(failure=error.kind, reason=f"compile: {error}")
        return found

    def _begin(self) -> None:
        try:
            header, _ = self.call({"call": "ready"}, seconds=START_SECONDS)
        except RpcFailed as error:
            header = {"error": error.kind, "message": str(error)}
        if "error" in header:
            raise CompilerDown(
                f"TVM cannot be loaded in a process that compiles: {header.get('message')}; try "
                "python -c 'import tvm'"
            )


@cache
def shared_pool() -> CompilePool:
    """Of this process."""
    return CompilePool(len(os.sched_getaffinity(0)))
