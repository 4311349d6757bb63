"""Load a network's library with TVM's runtime alone, and run it.

TVM's runtime is a library of 3 MB, whereas TVM's compiler has 260 MB. A process that only runs
networks does not load the compiler.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import numpy as np
import tvm_ffi
from numpy.typing import NDArray
from tvm_ffi.libinfo import load_lib_ctypes

from tilewright.core.bfloat16 import rounded_array, widened_array
from tilewright.core.tvm_types import Array, RuntimeModule, RuntimeTensor
from tilewright.networks.errors import ImportFailedError, refused_inputs
from tilewright.networks.partition.region_session import RegionCalls
from tilewright.targets.kernels import ALIGNMENT, aligned_empty

MAIN = "main"
Moved = tuple[int, Sequence[int], Sequence[int]]
"""Argument of a kernel whose axes are permuted in the network: its index, its shape in memory, and
the permutation that gives the axes of the stand-alone kernel. See
`networks.compiled.operands_in_place`."""
Stored = tuple[int, int]
"""Argument of a kernel that the network stores in bfloat16: its index, and the number of channels
per block in memory."""
SMALL = 1 << 14
"""Size in bytes up to which an input is always copied, because copying it takes less time than
describing its memory to TVM. `python -m benchmarks.cpu.networks --networks digits_cnn,dlrm_1`
measures small networks."""
CPU, POOLED = 1, 2
"""TVM's code for a CPU device, and TVM's code for an allocator that reuses freed memory."""


class LoadedLibrary:
    """A network's library, loaded into this process.

    Loading a library executes code from it, so do not load libraries that you do not trust. Several
    threads may call the object at the same time; each thread has its own virtual machine.

    Args:
        path: path of the library file.
        weights: the weights, in the shapes with which the library was compiled. They are read in
            place if their addresses are multiples of `ALIGNMENT`.
        regions: the parts of the network that onnxruntime runs, or None if there are none.

    Raises:
        ImportFailedError: TVM's runtime is missing.
    """

    def __init__(
        self, path: Path, weights: Sequence[Array], regions: RegionCalls | None = None
    ) -> None:
        _load_runtime()
        self._regions = regions
        self._module = tvm_ffi.load_module(str(path))
        self._weights = (tvm_ffi.Array(list(map(_tensor, weights))),) if weights else ()
        # Each thread has its own virtual machine, since a machine holds the state of a call.
        self._caller = threading.local()

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run one inference.

        Args:
            arrays: inputs of the network. A large array is read in place if its address is a
                multiple of `ALIGNMENT`; otherwise it is copied.

        Returns:
            Outputs of the network. An output that shares memory with an input is copied.

        Raises:
            InputError: an index lies outside its tensor, or an integer is divided by zero.
        """
        main, thread_tensors = self._main, self._caller.tensors
        inputs = list(map(thread_tensors.input, count(), arrays))
        try:
            with self._regions.reraise_errors() if self._regions else nullcontext():
                result = main(*inputs, *self._weights)
        except ValueError as error:
            raise refused_inputs(error) from error
        results = [result] if isinstance(result, tvm_ffi.Tensor) else result
        outputs: list[Array] = thread_tensors.outputs(inputs, list(map(_array, results)))
        return outputs

    @property
    def _machine(self) -> RuntimeModule:
        """The calling thread's virtual machine, which is created on first use."""
        machine = getattr(self._caller, "machine", None)
        if machine is None:
            with self._regions.registered() if self._regions else nullcontext():
                machine = self._caller.machine = self._module["vm_load_executable"]()
                machine["vm_initialization"](CPU, 0, POOLED)
            self._caller.tensors = _TensorsOfThread()
            self._caller.main = machine[MAIN]
        return machine

    @property
    def _main(self) -> Callable[..., RuntimeTensor]:
        if not hasattr(self._caller, "main"):
            self._machine  # noqa: B018  (creates the machine and looks up its function)
        return self._caller.main

    def function(
        self, name: str, moved: Sequence[Moved] = (), bfloat16: Sequence[Stored] = ()
    ) -> Callable[..., object]:
        """Return one kernel of the library as a function on tensors in the kernel's own layout.

        Args:
            name: name of the kernel's function.
            moved: arguments whose axes are permuted in the network. They are copied for each call.
            bfloat16: arguments that the network stores in bfloat16, with a block size of their own.
                They are converted from and to float32 for each call.
        """
        kernel: Callable[..., object] = self._module.get_function(name, query_imports=True)
        if bfloat16:
            kernel = _narrowing(kernel, bfloat16)
        return _moving(kernel, moved) if moved else kernel

    def time_inferences(self, arrays: Sequence[Array], times: int) -> NDArray[np.float64]:
        """Measure the time of several inferences, without the time for passing arrays in and out.

        Args:
            arrays: inputs of the network.
            times: number of inferences.

        Returns:
            Time per inference in seconds, float64 of shape (times,).
        """
        main, arguments = self._main, [*map(_tensor, arrays), *self._weights]
        seconds = np.empty(times)
        for turn in range(times):
            started = time.perf_counter()
            main(*arguments)
            seconds[turn] = time.perf_counter() - started
        return seconds

    def profiled(self, arrays: Sequence[Array]) -> list[tuple[str, float]]:
        """Run one inference, and return the name and the time in seconds of every call, in order.

        Args:
            arrays: inputs of the network.
        """
        calls: list[tuple[str, float]] = []
        started = 0.0

        def watch(function: object, name: str, before: bool, result: object, *_: object) -> int:
            nonlocal started
            now = time.perf_counter()
            if before:
                started = now
            else:
                calls.append((str(name), now - started))
            return 0

        self._machine["set_instrument"](watch)
        try:
            self(arrays)
        finally:
            self._machine["set_instrument"](lambda *_: 0)
        return calls


class _TensorsOfThread:
    """Tensors that one thread uses to pass arrays to its virtual machine.

    Small inputs are copied into tensors that are reused for every call. This takes less time than
    creating a TVM tensor for the caller's array.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Array, RuntimeTensor]] = {}
        self._passed: Sequence[int] | None = None

    def input(self, number: int, array: Array) -> RuntimeTensor:
        """Return a tensor with the content of an input array.

        Args:
            number: number of the input.
            array: the array. Its shape and type are the same for every call.
        """
        if array.nbytes > SMALL:
            return _tensor(array)
        kept = self._kept.get(number)
        if kept is None:
            aligned = aligned_empty(array.shape, array.dtype)
            kept = self._kept[number] = aligned, tvm_ffi.from_dlpack(aligned)
        kept[0][...] = array
        return kept[1]

    def outputs(self, given: Sequence[RuntimeTensor], made: list[Array]) -> list[Array]:
        """Replace each output that shares memory with an input by a copy.

        The first call determines which outputs share memory with an input. Later calls rely on
        this.

        Args:
            given: tensors of the inputs.
            made: arrays of the outputs. The list is changed in place and returned.
        """
        if self._passed is None:
            inputs = list(map(_array, given))
            self._passed = [
                number
                for number, array in enumerate(made)
                if any(np.may_share_memory(array, input_array) for input_array in inputs)
            ]
        for number in self._passed:
            made[number] = made[number].copy()
        return made


@cache
def _load_runtime() -> object:
    """Load TVM's runtime in the same way as `import tvm`, but without the compiler."""
    spec = find_spec("tvm")
    if spec is None or spec.origin is None:
        raise ImportFailedError(
            "running libraries needs TVM, which is not installed; install apache-tvm"
        )
    folder = Path(spec.origin).parent / "lib"
    return load_lib_ctypes("tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=[folder])


def _tensor(array: Array) -> RuntimeTensor:
    """Return a TVM tensor for an array, which is copied unless kernels can read it in place."""
    flags, place = array.flags, array.__array_interface__["data"][0]  # `array.ctypes` takes longer
    if not (flags.c_contiguous and flags.writeable and place % ALIGNMENT == 0):
        copy = aligned_empty(array.shape, array.dtype)
        copy[...] = array
        array = copy
    return tvm_ffi.from_dlpack(array)


def _moving(function: Callable[..., object], moved: Sequence[Moved]) -> Callable[..., None]:
    """Wrap a kernel so that it accepts tensors with the stand-alone kernel's order of axes.

    The kernel in the library reads and writes some tensors in the order of axes that the network
    has. The wrapper permutes these arguments into copies before the call. It permutes the output
    back after the call.

    Args:
        function: the kernel in the library.
        moved: (parameter number, shape in the network, permutation) of each such parameter.
    """

    def called(*tensors: RuntimeTensor) -> None:
        arguments, arrays = list(tensors), list(map(_array, tensors))
        for number, shape, axes in moved:
            split = arrays[number].reshape([shape[axis] for axis in axes])
            arrays[number] = aligned_empty(tuple(shape), split.dtype)
            arrays[number][...] = split.transpose(np.argsort(axes))
            arguments[number] = _tensor(arrays[number])
        function(*arguments)
        for number, _, axes in moved:
            if number == len(tensors) - 1:
                out = _array(tensors[number])
                out[...] = arrays[number].transpose(axes).reshape(out.shape)

    return called


def _narrowing(function: Callable[..., object], bfloat16: Sequence[Stored]) -> Callable[..., None]:
    """Wrap a kernel with bfloat16 arguments so that it accepts float32 arguments instead.

    Args:
        function: the kernel in the library.
        bfloat16: (parameter number, channels per block) of each parameter that the library stores
            in bfloat16. These arguments are converted before the call, and the output is converted
            back after it.
    """

    def called(*tensors: RuntimeTensor) -> None:
        arguments, out = list(tensors), len(tensors) - 1
        for number, block in bfloat16:
            array = _array(tensors[number])
            bits = _in_blocks(rounded_array(array), block)
            aligned = aligned_empty(bits.shape, bits.dtype)
            aligned[...] = bits
            arguments[number] = _tensor(aligned)
        function(*arguments)
        if out in dict(bfloat16):
            array = _array(tensors[out])
            array[...] = _in_blocks(widened_array(_array(arguments[out])), array.shape[4])

    return called


def _in_blocks(packed: Array, block: int) -> Array:
    """Change the block size of an array: (n, c / b, h, w, b) → (n, c / block, h, w, block)."""
    n, count, h, w, old_block = packed.shape
    if old_block == block:
        return packed
    channels = packed.transpose(0, 1, 4, 2, 3).reshape(n, count * old_block // block, block, h, w)
    return channels.transpose(0, 1, 3, 4, 2)


def _array(tensor: RuntimeTensor) -> Array:
    return np.from_dlpack(tensor)
