"""Times compiled kernels in this process, the child of `targets.cpu.runner`: pinned, checked,
interleaved with a reference kernel.

The reference kernel is a product of small matrices, which keeps the processor's multipliers busy;
other kernels are timed beside it. Its data fit the second-level cache of a core. So it suffers from
a lower clock or a lost core as they do, and leaves their data in cache. A second kernel, a sum over
a piece of memory, measures how fast the processor reads.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, PrimFunc, RuntimeModule, RuntimeTensor
from tilewright.targets.cpu.assembly import link
from tilewright.targets.cpu.compile import FUNCTION, assembly_of, llvm_target
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.cpu.timing import LARGE, Repeats, Run, Seconds, Timing, time_kernel

tvm = lazy_module("tvm")
te = lazy_module("tvm.te")
s_tir = lazy_module("tvm.s_tir")

CALIBRATION_TURNS, CALIBRATION_REPEATS = 25, 8
"""How often the reference is timed at the start: its fastest turn is that of a quiet machine."""


@dataclass(frozen=True)
class CpuMeasurement:
    """`seconds`, shape (repeats,), of a kernel that gives the right numbers; else `status`, one of
    `targets.base.STATUSES`, and `reason` say what is wrong."""

    seconds: Seconds
    status: str = "valid"
    reason: str = ""


class CpuBench:
    """This process as a place for timing: threads pinned to a core each, the reference at hand."""

    def __init__(self, spec: CpuSpec, timing: Timing) -> None:
        self.spec, self.timing = spec, timing
        self._folder = tempfile.TemporaryDirectory()
        self._numbers = count()
        function, arrays, self.operations = reference_product(spec)
        self._module = self._built(function)
        self._arguments = _tensors(arrays)
        pin(spec.threads, lambda: self._module[FUNCTION](*self._arguments))
        self.reference = self._run(self._module, self._arguments)

    def load(self, library: NDArray[np.uint8]) -> RuntimeModule:
        """TVM's module of a library's bytes, shape (bytes,), put into a new file: one that is in
        use must not change under its process."""
        path = Path(self._folder.name) / f"{next(self._numbers)}.so"
        path.write_bytes(library.tobytes())
        module = tvm.runtime.load_module(str(path))
        path.unlink()
        return module

    def calibrate(self) -> float:
        """Seconds the reference takes on this machine in quiet: the least median of several turns
        of some repeats."""
        once = self._once(self._module, self._arguments)
        calls = max(1, round(self.timing.repeat / once))
        turns = [
            np.median(self.reference(CALIBRATION_REPEATS, calls).chosen(True))
            for _ in range(CALIBRATION_TURNS)
        ]
        return float(min(turns))

    def measure(
        self,
        library: NDArray[np.uint8],
        tensors: SampleTensors,
        values: KnobValues,
        quiet_reference: float,
    ) -> CpuMeasurement:
        """Of a library's bytes, shape (bytes,): checked against the reference result, timed, and
        checked once more. `quiet_reference` is what `calibrate` gave, here or elsewhere."""
        module, arguments = self.load(library), tensors.arguments(values)
        self._call(module, tensors, arguments)
        if said := self._wrong(tensors, arguments):
            return CpuMeasurement(np.empty(0), "wrong_result", said)
        turns = streamed(tensors, arguments, self.timing.stream_bytes)
        once = self._once(module, *turns)
        run = self._run(module, *turns)
        seconds = time_kernel(run, self.reference, once, quiet_reference, self.timing)
        if said := self._wrong(tensors, arguments):
            return CpuMeasurement(np.empty(0), "wrong_result", f"{said}, not at the first call")
        return CpuMeasurement(seconds)

    def wrong_values(
        self, library: NDArray[np.uint8], tensors: SampleTensors, values: KnobValues
    ) -> int:
        """How many values differ from the reference by more than the tolerance. The library's
        bytes have shape (bytes,)."""
        arguments = tensors.arguments(values)
        self._call(self.load(library), tensors, arguments)
        apart = tensors.apart(arguments[-1].numpy())
        return int((~(apart <= self.timing.tolerance * np.abs(tensors.expected).max())).sum())

    def peak(self) -> float:
        """Floating-point operations a second of the reference in quiet."""
        return self.operations / self.calibrate()

    def bandwidth(self, size: int) -> float:
        """Bytes a second that are read of a piece of `size` bytes again and again, in quiet."""
        function, arrays, read = reading_kernel(self.spec, size)
        module, arguments = self._built(function), _tensors(arrays)
        calls = max(1, round(self.timing.repeat / self._once(module, arguments)))
        found = self._run(module, arguments)(2 * CALIBRATION_REPEATS, calls)
        return read / float(found.seconds.min())

    def _built(self, function: PrimFunc) -> RuntimeModule:
        assembly = assembly_of(function, llvm_target(self.spec))
        return self.load(np.frombuffer(link(assembly), np.uint8))

    def _call(
        self, module: RuntimeModule, tensors: SampleTensors, arguments: list[RuntimeTensor]
    ) -> None:
        """Once, into an output of wrong numbers: what a kernel does not write is wrong."""
        arguments[-1].copyfrom(tensors.nothing())
        module[FUNCTION](*arguments)

    def _wrong(self, tensors: SampleTensors, arguments: list[RuntimeTensor]) -> str:
        """What is wrong with an output; "" if nothing is."""
        error = tensors.error(arguments[-1].numpy())
        if error <= self.timing.tolerance:  # NaN is not
            return ""
        return (
            f"run: the output differs from the reference by {error:.2g} of its largest value; "
            f"{self.timing.tolerance:g} is allowed"
        )

    def _once(self, module: RuntimeModule, *turns: list[RuntimeTensor]) -> float:
        """About what a call takes, in seconds, when threads are warm; `turns` as of `_run`."""
        function, began = module[FUNCTION], time.perf_counter()
        taken: list[float] = []
        for arguments in cycle(turns):
            start = time.perf_counter()
            function(*arguments)
            taken.append(time.perf_counter() - start)
            if len(taken) >= 3 and time.perf_counter() - began >= self.timing.warm_up:
                break
        return min(taken)

    def _run(self, module: RuntimeModule, *turns: list[RuntimeTensor]) -> Run:
        """A way to time a kernel, with each of these arguments in turn. Few calls and those with
        several arguments are timed from here, which adds a microsecond a call; many with the same
        are looped over by TVM."""
        function, following = module[FUNCTION], cycle(turns)

        def timed(calls: int) -> float:
            if len(turns) > 1 or (calls == 1 and not self.timing.flush_bytes):
                given = list(islice(following, calls))
                start = time.perf_counter()
                for arguments in given:
                    function(*arguments)
                return (time.perf_counter() - start) / calls
            evaluator = module.time_evaluator(
                FUNCTION, tvm.cpu(), number=calls, cache_flush_bytes=self.timing.flush_bytes
            )
            return float(evaluator(*turns[0]).results[0])

        def run(repeats: int, calls: int) -> Repeats:
            calls = 1 if self.timing.flush_bytes else calls
            seconds, quiet = np.empty(repeats), np.empty(repeats, np.bool_)
            for place in range(repeats):
                before = _preemptions()
                seconds[place] = timed(calls)
                quiet[place] = _preemptions() == before
            return Repeats(seconds, quiet)

        return run


def streamed(
    tensors: SampleTensors, arguments: list[RuntimeTensor], stream_bytes: int
) -> list[list[RuntimeTensor]]:
    """The arguments; then the same with copies of large weights, `stream_bytes` of copies."""
    if tensors.workload.operator == "batch_matmul":  # both operands are results of kernels
        return [arguments]
    data, weights, *others = arguments
    numbers = weights.numpy()
    copies = stream_bytes // numbers.nbytes if numbers.nbytes >= LARGE else 0
    more = (tvm.runtime.tensor(numbers) for _ in range(copies))
    return [arguments, *([data, copy, *others] for copy in more)]


def pin(threads: int, start: Callable[[], object]) -> None:
    """Give TVM as many threads, this one among them, and a core to each; `start` makes a parallel
    call, at whose first TVM starts its threads. TVM's own way leaves them where they are."""
    tasks = Path("/proc/self/task")
    cores = sorted(os.sched_getaffinity(0))[:threads]
    one_core_each = -2  # tvm::runtime::threading::ThreadGroup::kSpecifyOneCorePerThread
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(one_core_each, threads, [str(core) for core in cores])
    before = set(os.listdir(tasks))
    start()
    ours = [os.getpid(), *sorted(int(task) for task in set(os.listdir(tasks)) - before)]
    for task, core in zip(ours, cores, strict=False):
        os.sched_setaffinity(task, {core})


def _preemptions() -> int:
    """How often a thread of this process had to leave its core."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _tensors(arrays: list[NDArray[np.float32]]) -> list[RuntimeTensor]:
    return [tvm.runtime.tensor(array) for array in arrays]


# -- reference kernels -------------------------------------------------------------------------


_ROWS, _DEPTH = 96, 256
_STREAMS = 8
"""Vectors of sums that a thread reads into: enough to hide the latency of an addition."""


def reference_product(spec: CpuSpec) -> tuple[PrimFunc, list[Array], int]:
    """A scheduled TensorIR function, its arguments as arrays, and its floating-point operations.
    Every thread multiplies (96, 256) by (256, 4 vectors) for itself."""
    threads, columns = spec.threads, 4 * spec.lanes
    tall = 12 if spec.registers == 32 else 6
    left = te.placeholder((threads, _ROWS, _DEPTH), name="left")
    right = te.placeholder((threads, _DEPTH, columns), name="right")
    k = te.reduce_axis((0, _DEPTH), "k")
    out = te.compute(
        (threads, _ROWS, columns),
        lambda t, m, n: te.sum(left[t, m, k] * right[t, k, n], axis=[k]),
        name="out",
    )
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([left, right, out])}))
    block = sch.get_sblock("out")
    t, m, n, depth = sch.get_loops(block)
    m_outer, m_tile = sch.split(m, [None, tall])
    n_outer, n_vectors, n_lanes = sch.split(n, [None, 2, spec.lanes])
    sch.reorder(t, n_outer, m_outer, depth, m_tile, n_vectors, n_lanes)
    sch.parallel(t)
    sch.unroll(m_tile)
    sch.unroll(n_vectors)
    sch.vectorize(n_lanes)
    initial = sch.decompose_reduction(block, depth)
    *_, rows, vectors, lanes = sch.get_loops(initial)
    sch.unroll(rows)
    sch.unroll(vectors)
    sch.vectorize(lanes)
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal((threads, _ROWS, _DEPTH), dtype=np.float32),
        rng.standard_normal((threads, _DEPTH, columns), dtype=np.float32),
        np.zeros((threads, _ROWS, columns), np.float32),
    ]
    return sch.mod["main"], arrays, 2 * threads * _ROWS * _DEPTH * columns


def reading_kernel(spec: CpuSpec, size: int) -> tuple[PrimFunc, list[Array], int]:
    """A scheduled TensorIR function, its arguments as arrays, and the bytes it reads: about
    `size`, each thread its part."""
    threads, row = spec.threads, _STREAMS * spec.lanes
    rows = max(1, size // (4 * threads * row))
    data = te.placeholder((threads, rows, row), name="data")
    k = te.reduce_axis((0, rows), "k")
    out = te.compute((threads, row), lambda t, i: te.sum(data[t, k, i], axis=[k]), name="out")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, out])}))
    block = sch.get_sblock("out")
    t, i, depth = sch.get_loops(block)
    streams, lanes = sch.split(i, [_STREAMS, spec.lanes])
    sch.reorder(t, depth, streams, lanes)
    sch.parallel(t)
    sch.unroll(streams)
    sch.vectorize(lanes)
    initial = sch.decompose_reduction(block, depth)
    *_, streams, lanes = sch.get_loops(initial)
    sch.unroll(streams)
    sch.vectorize(lanes)
    arrays = [np.ones((threads, rows, row), np.float32), np.zeros((threads, row), np.float32)]
    return sch.mod["main"], arrays, 4 * threads * rows * row
