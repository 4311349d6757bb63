"""Compiles batches of configs in long-lived child processes.

If a config makes LLVM hang or terminates its process, no other config is affected.
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
"""Timeout in seconds for compiling one config. Most configs take half a second. A config that
exceeds the timeout has unrolled too much code."""
START_SECONDS = 120.0
"""Timeout in seconds for a compile process to start and to load TVM."""
KEPT = 512
"""Maximum number of configs whose libraries (about 25 KB each) are cached. Baselines and the best
configs are lowered more than once."""
Key = tuple[str, CpuSpec, tuple[tuple[str, int], ...]]
"""Key of a cached library: workload ID, processor, and sorted pairs of knob name and value."""


class CompilerDown(TilewrightError):
    """Raised if a compile process does not start."""


class CompilePool:
    """Pool of compile processes, which start when they are needed and end with the calling process.

    Several threads may compile batches at the same time; they share the processes.

    Args:
        workers: number of compile processes.
        seconds: time limit for one config, in seconds.
        module: name of the module that the processes run.
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
        """Compile configs. Equal configs are compiled once.

        Args:
            workload: the workload.
            spec: the processor.
            batch: configs, each as knob values by knob name.

        Returns:
            One result per config, in the same order.

        Raises:
            CompilerMissing: there is no C compiler.
            CompilerDown: TVM cannot be loaded in a compile process.
        """
        # Fail before any process starts if there is no C compiler.
        c_compiler()
        keys = [(workload.id, spec, tuple(sorted(values.items()))) for values in batch]
        distinct = dict(zip(keys, batch, strict=True))
        with self._lock:
            results = {key: self._known[key] for key in distinct if key in self._known}
        new = {key: values for key, values in distinct.items() if key not in results}
        with ThreadPoolExecutor(self.workers) as threads:
            compiled = threads.map(
                lambda values: self._compile_one(workload, spec, values), new.values()
            )
            results.update(zip(new, compiled, strict=True))
        self._keep({key: results[key] for key in new})
        return [results[key] for key in keys]

    def close(self) -> None:
        """Terminate the processes. A later batch starts new ones."""
        for _ in range(self.workers):
            process = self._idle.get()
            process.stop()
            self._idle.put(process)

    def _compile_one(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> Compiled:
        process = self._idle.get()
        try:
            return process.compile(workload, spec, values)
        finally:
            self._idle.put(process)

    def _keep(self, results: dict[Key, Compiled]) -> None:
        with self._lock:
            self._known.update(results)
            # Dictionaries keep the order of insertion, so that the oldest results are removed.
            for key in list(self._known)[: max(len(self._known) - KEPT, 0)]:
                del self._known[key]


class _Process(RpcProcess):
    """One compile process."""

    def __init__(self, module: str, limits: Limits) -> None:
        super().__init__(module, (), limits)

    def compile(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> Compiled:
        """Compile a config. Raise `CompilerDown` if the process does not start."""
        if not self.is_running:
            self._load_tvm()
        question: Header = {
            "call": "compile", "workload": workload.to_json(), "spec": spec.to_json(),
            "values": dict(values),
        }  # fmt: skip
        try:
            header, arrays = self.call(question)
            if "error" in header:
                return Compiled(failure="compile", reason=f"compile: {header.get('message')}")
            compiled = Compiled(
                arrays["library"].tobytes(), tuple(arrays["hidden"].tolist()),
                str(header["failure"]), str(header["reason"]),
            )  # fmt: skip
            if not compiled.failure and len(compiled.hidden) != len(COLUMNS):
                raise RpcNonsense("the compiler process returned other features than expected")
        except RpcFailed as error:
            return Compiled(failure=error.kind, reason=f"compile: {error}")
        return compiled

    def _load_tvm(self) -> None:
        try:
            header, _ = self.call({"call": "ready"}, seconds=START_SECONDS)
        except RpcFailed as error:
            header = {"error": error.kind, "message": str(error)}
        if "error" in header:
            raise CompilerDown(
                f"TVM cannot be loaded in a compiler process: {header.get('message')}; try "
                "python -c 'import tvm'"
            )


@cache
def shared_pool() -> CompilePool:
    """Return the compile pool of this process, with one compile process per usable core."""
    return CompilePool(len(os.sched_getaffinity(0)))
