"""Timing of compiled kernels in the current process, the child process of `targets.cpu.runner`.

Threads are pinned to cores, and outputs are compared with a reference result. Runs of the timed
kernel alternate with runs of a fixed reference kernel, whose slowdown shows how busy the machine
is.

The reference kernel is a product of small matrices, which keeps the processor's multipliers busy.
Its data fit the second-level cache of a core. A lower clock or a lost core therefore slows it down
like the timed kernel, and it does not evict the timed kernel's data from the cache. A second
reference kernel sums up an array, to measure how fast the processor reads memory.
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
"""Number of turns in which the reference kernel is timed at the start, and number of repeats per
turn. The fastest turn is taken as the time on a quiet machine."""


@dataclass(frozen=True)
class CpuMeasurement:
    """Result of timing one kernel.

    Attributes:
        seconds: seconds per call of each repeat, shape (repeats,); empty unless the status is
            `valid`.
        status: one of `targets.base.STATUSES`.
        reason: what is wrong, if the status is not `valid`.
    """

    seconds: Seconds
    status: str = "valid"
    reason: str = ""


class CpuBench:
    """Test bench that times kernels in this process, with each thread pinned to one core.

    Args:
        spec: the processor that kernels are compiled for.
        timing: parameters of timing.

    Attributes:
        operations: floating-point operations of one call of the reference kernel.
        reference: function that runs and times the reference kernel: see `targets.cpu.timing.Run`.
    """

    def __init__(self, spec: CpuSpec, timing: Timing) -> None:
        self.spec, self.timing = spec, timing
        self._folder = tempfile.TemporaryDirectory()
        self._numbers = count()
        function, arrays, self.operations = reference_product(spec)
        self._module = self._build_module(function)
        self._arguments = _tensors(arrays)
        pin(spec.threads, lambda: self._module[FUNCTION](*self._arguments))
        self.reference = self._run(self._module, self._arguments)

    def load(self, library: NDArray[np.uint8]) -> RuntimeModule:
        """Load a compiled library into this process.

        The bytes are written to a new file each time, because a file that this process has loaded
        must not change.

        Args:
            library: the library's bytes, shape (bytes,).

        Returns:
            TVM's module of the library.
        """
        path = Path(self._folder.name) / f"{next(self._numbers)}.so"
        path.write_bytes(library.tobytes())
        module = tvm.runtime.load_module(str(path))
        # The loaded library stays in memory without its file.
        path.unlink()
        return module

    def calibrate(self) -> float:
        """Measure the seconds per call that the reference kernel takes on a quiet machine.

        The reference kernel is timed `CALIBRATION_TURNS` times, each time with several repeats. The
        result is the smallest of the medians.
        """
        once = self._time_once(self._module, self._arguments)
        calls = max(1, round(self.timing.repeat / once))
        turns = [
            np.median(self.reference(CALIBRATION_REPEATS, calls).choose_repeats(True))
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
        """Check and time a kernel.

        The output is compared with the reference result before and after the kernel is timed.

        Args:
            library: bytes of the compiled library, uint8 array of shape (bytes,).
            tensors: inputs of the workload, and the reference result.
            values: the config, as knob values by knob name.
            quiet_reference: seconds per call of the reference kernel on a quiet machine, from
                `calibrate`, which may have run in an earlier process.

        Returns:
            The seconds per call, or the status `wrong_result` with a reason.
        """
        module, arguments = self.load(library), tensors.arguments(values)
        self._call(module, tensors, arguments)
        if problem := self._output_error(tensors, arguments):
            return CpuMeasurement(np.empty(0), "wrong_result", problem)
        argument_sets = copy_streamed_weights(tensors, arguments, self.timing.stream_bytes)
        once = self._time_once(module, *argument_sets)
        run = self._run(module, *argument_sets)
        seconds = time_kernel(run, self.reference, once, quiet_reference, self.timing)
        if problem := self._output_error(tensors, arguments):
            return CpuMeasurement(np.empty(0), "wrong_result", f"{problem} (not at the first call)")
        return CpuMeasurement(seconds)

    def wrong_values(
        self, library: NDArray[np.uint8], tensors: SampleTensors, values: KnobValues
    ) -> int:
        """Return the number of output values whose error exceeds the tolerance.

        Args:
            library: bytes of the compiled library, uint8 array of shape (bytes,).
            tensors: inputs of the workload, and the reference result.
            values: the config, as knob values by knob name.
        """
        arguments = tensors.arguments(values)
        self._call(self.load(library), tensors, arguments)
        errors = tensors.absolute_errors(arguments[-1].numpy())
        # NaN counts as wrong, since it is not less than or equal to anything.
        return int((~(errors <= self.timing.tolerance * np.abs(tensors.expected).max())).sum())

    def peak(self) -> float:
        """Return the reference kernel's floating-point operations per second on a quiet machine."""
        return self.operations / self.calibrate()

    def bandwidth(self, size: int) -> float:
        """Return the bytes per second at which an array is read repeatedly on a quiet machine.

        Args:
            size: size of the array in bytes.
        """
        function, arrays, read = reading_kernel(self.spec, size)
        module, arguments = self._build_module(function), _tensors(arrays)
        calls = max(1, round(self.timing.repeat / self._time_once(module, arguments)))
        repeats = self._run(module, arguments)(2 * CALIBRATION_REPEATS, calls)
        return read / float(repeats.seconds.min())

    def _build_module(self, function: PrimFunc) -> RuntimeModule:
        assembly = assembly_of(function, llvm_target(self.spec))
        return self.load(np.frombuffer(link(assembly), np.uint8))

    def _call(
        self, module: RuntimeModule, tensors: SampleTensors, arguments: list[RuntimeTensor]
    ) -> None:
        """Call a kernel once, after filling its output with wrong values.

        A check of the output then also detects values that the kernel did not write.

        Args:
            module: the kernel's module.
            tensors: inputs of the workload, and the reference result.
            arguments: arguments of the kernel, of which the last one is the output.
        """
        arguments[-1].copyfrom(tensors.wrong_output())
        module[FUNCTION](*arguments)

    def _output_error(self, tensors: SampleTensors, arguments: list[RuntimeTensor]) -> str:
        """Return an error message if an output is wrong, or "" if it is correct."""
        error = tensors.error(arguments[-1].numpy())
        if error <= self.timing.tolerance:  # False for NaN
            return ""
        return (
            f"run: the output differs from the reference by {error:.2g} of its largest "
            f"value; at most {self.timing.tolerance:g} is accepted"
        )

    def _time_once(self, module: RuntimeModule, *argument_sets: list[RuntimeTensor]) -> float:
        """Measure the approximate seconds of one call, after warm-up calls.

        The result determines how many calls form one repeat.

        Args:
            module: the kernel's module.
            *argument_sets: arguments of the kernel. Several sets are used in turn.
        """
        function, began = module[FUNCTION], time.perf_counter()
        durations: list[float] = []
        for arguments in cycle(argument_sets):
            start = time.perf_counter()
            function(*arguments)
            durations.append(time.perf_counter() - start)
            if len(durations) >= 3 and time.perf_counter() - began >= self.timing.warm_up:
                break
        return min(durations)

    def _run(self, module: RuntimeModule, *argument_sets: list[RuntimeTensor]) -> Run:
        """Return a function that times a kernel, cycling through the given sets of arguments.

        With several sets of arguments, or a single call per repeat, calls are timed from Python,
        which adds about a microsecond per call. Otherwise TVM runs the loop over the calls.

        Args:
            module: the kernel's module.
            *argument_sets: arguments of the kernel. Several sets are used in turn.
        """
        function, next_arguments = module[FUNCTION], cycle(argument_sets)

        def timed(calls: int) -> float:
            if len(argument_sets) > 1 or (calls == 1 and not self.timing.flush_bytes):
                chosen_arguments = list(islice(next_arguments, calls))
                start = time.perf_counter()
                for arguments in chosen_arguments:
                    function(*arguments)
                return (time.perf_counter() - start) / calls
            evaluator = module.time_evaluator(
                FUNCTION, tvm.cpu(), number=calls, cache_flush_bytes=self.timing.flush_bytes
            )
            return float(evaluator(*argument_sets[0]).results[0])

        def run(repeats: int, calls: int) -> Repeats:
            # Only the first call after a flush finds cold caches.
            calls = 1 if self.timing.flush_bytes else calls
            seconds, quiet = np.empty(repeats), np.empty(repeats, np.bool_)
            for repeat in range(repeats):
                before = _preemptions()
                seconds[repeat] = timed(calls)
                quiet[repeat] = _preemptions() == before
            return Repeats(seconds, quiet)

        return run


def copy_streamed_weights(
    tensors: SampleTensors, arguments: list[RuntimeTensor], stream_bytes: int
) -> list[list[RuntimeTensor]]:
    """Make copies of large weights, so that calls that cycle through the copies miss the cache.

    In a network, other layers evict a layer's large weights from the cache between two inferences.
    A kernel that is called repeatedly with the same arguments would find its weights in the cache.

    Args:
        tensors: inputs of the workload.
        arguments: arguments of the kernel: data, weights, operands of the epilogue and output.
        stream_bytes: total size of the copies of the weights, in bytes.

    Returns:
        Sets of arguments: `arguments` itself, and one more set per copy of the weights. Weights
        smaller than `LARGE` bytes and operands of a batched product are not copied.
    """
    if tensors.workload.operator == "batch_matmul":  # both operands are activations, not weights
        return [arguments]
    data, weights, *other_arguments = arguments
    weight_values = weights.numpy()
    copies = stream_bytes // weight_values.nbytes if weight_values.nbytes >= LARGE else 0
    copied_weights = (tvm.runtime.tensor(weight_values) for _ in range(copies))
    return [arguments, *([data, copy, *other_arguments] for copy in copied_weights)]


def pin(threads: int, start: Callable[[], object]) -> None:
    """Set the number of TVM's threads and pin each thread to one core.

    TVM's own pinning does not move threads that already run.

    Args:
        threads: number of threads, including the calling thread.
        start: makes a parallel call, at which TVM starts its threads.
    """
    tasks = Path("/proc/self/task")
    cores = sorted(os.sched_getaffinity(0))[:threads]
    one_core_each = -2  # tvm::runtime::threading::ThreadGroup::kSpecifyOneCorePerThread
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(one_core_each, threads, [str(core) for core in cores])
    earlier_tasks = set(os.listdir(tasks))
    start()
    thread_ids = [
        os.getpid(),
        *sorted(int(task) for task in set(os.listdir(tasks)) - earlier_tasks),
    ]
    for task, core in zip(thread_ids, cores, strict=False):
        os.sched_setaffinity(task, {core})


def _preemptions() -> int:
    """Return how often the operating system has preempted a thread of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _tensors(arrays: list[NDArray[np.float32]]) -> list[RuntimeTensor]:
    return [tvm.runtime.tensor(array) for array in arrays]


# -- reference kernels -------------------------------------------------------------------------


_ROWS, _DEPTH = 96, 256
_STREAMS = 8
"""Number of independent accumulator vectors per thread in the kernel that measures the read
bandwidth. They are enough to hide the latency of an addition."""


def reference_product(spec: CpuSpec) -> tuple[PrimFunc, list[Array], int]:
    """Define the reference kernel: every thread multiplies its own pair of matrices.

    The matrices have shapes (96, 256) and (256, 4 × lanes).

    Args:
        spec: the processor.

    Returns:
        The scheduled TensorIR function, its arguments, and the floating-point operations of one
        call.
    """
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
    """Define the kernel that measures bandwidth: every thread sums up its part of an array.

    Args:
        spec: the processor.
        size: approximate size of the array in bytes.

    Returns:
        The scheduled TensorIR function, its arguments, and the number of bytes that one call reads.
    """
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
