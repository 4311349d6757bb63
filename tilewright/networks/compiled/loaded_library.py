"""Loads the library of a network with TVM's runtime alone, and runs it.

The runtime is a library of 3 MB that TVM's compiler of 260 MB links to. So a process that only runs
networks does not load the compiler, and one that compiles has the runtime anyway.
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
"""A kernel's argument, the shape that it has in memory, and the order in which the kernel alone
has its axes; see `networks.compiled.operands_in_place`."""
Stored = tuple[int, int]
"""A kernel's argument in bfloat16, and the channels of its blocks in memory."""
SMALL = 1 << 14
"""Bytes of an input that is copied in any case, which takes less time than describing it to TVM:
`python -m benchmarks.cpu.networks --networks digits_cnn,dlrm_1` measures small networks."""
CPU, POOLED = 1, 2
"""TVM's numbers of a processor, and of an allocator that keeps what was freed."""


class LoadedLibrary:
    """A library in this process. It runs code: load none of strangers. Threads may call it at the
    same time: each has a virtual machine of its own. It reads `weights` where they lie, at
    multiples of `ALIGNMENT`, in the shapes that it was compiled with, and calls `regions`. Raises
    `ImportFailedError` without TVM's runtime."""

    def __init__(
        self, path: Path, weights: Sequence[Array], regions: RegionCalls | None = None
    ) -> None:
        _load_runtime()
        self._regions = regions
        self._module = tvm_ffi.load_module(str(path))
        self._weights = (tvm_ffi.Array(list(map(_tensor, weights))),) if weights else ()
        self._caller = threading.local()

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """The network's outputs, shapes as it has them. Large inputs at an address that is a
        multiple of `ALIGNMENT` are read in place. Only an output that is an input in another shape
        is copied. Raises `InputError` for an index that lies outside its tensor, and an integer
        that is divided by zero."""
        main, own = self._main, self._caller.tensors
        given = list(map(own.input, count(), arrays))
        try:
            with self._regions.raising() if self._regions else nullcontext():
                result = main(*given, *self._weights)
        except ValueError as error:
            raise refused_inputs(error) from error
        results = [result] if isinstance(result, tvm_ffi.Tensor) else result
        made: list[Array] = own.outputs(given, list(map(_array, results)))
        return made

    @property
    def _machine(self) -> RuntimeModule:
        """The calling thread's own."""
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
            self._machine  # noqa: B018
        return self._caller.main

    def function(
        self, name: str, moved: Sequence[Moved] = (), bfloat16: Sequence[Stored] = ()
    ) -> Callable[..., object]:
        """One of its kernels, on tensors as the kernel alone has them. Those that it reads or
        writes with other axes here, `moved`, are copied, and so are those that have another type
        and other blocks here, `bfloat16`."""
        found: Callable[..., object] = self._module.get_function(name, query_imports=True)
        if bfloat16:
            found = _narrowing(found, bfloat16)
        return _moving(found, moved) if moved else found

    def timed(self, arrays: Sequence[Array], times: int) -> NDArray[np.float64]:
        """Seconds of so many inferences, shape (times,); getting arrays in and out is not part of
        them."""
        main, given = self._main, [*map(_tensor, arrays), *self._weights]
        taken = np.empty(times)
        for turn in range(times):
            begun = time.perf_counter()
            main(*given)
            taken[turn] = time.perf_counter() - begun
        return taken

    def profiled(self, arrays: Sequence[Array]) -> list[tuple[str, float]]:
        """The name and seconds of every call of an inference, in order, on arrays of the inputs'
        shapes."""
        calls: list[tuple[str, float]] = []
        begun = 0.0

        def watch(function: object, name: str, before: bool, result: object, *_: object) -> int:
            nonlocal begun
            now = time.perf_counter()
            if before:
                begun = now
            else:
                calls.append((str(name), now - begun))
            return 0

        self._machine["set_instrument"](watch)
        try:
            self(arrays)
        finally:
            self._machine["set_instrument"](lambda *_: 0)
        return calls


class _TensorsOfThread:
    """What a thread passes to its machine. Small inputs are copied to tensors that are kept: that
    takes less time than to find out where an array lies and to describe it to TVM."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Array, RuntimeTensor]] = {}
        self._passed: Sequence[int] | None = None

    def input(self, number: int, array: Array) -> RuntimeTensor:
        """The tensor of this number, of the same shape and type at each call."""
        if array.nbytes > SMALL:
            return _tensor(array)
        kept = self._kept.get(number)
        if kept is None:
            own = aligned_empty(array.shape, array.dtype)
            kept = self._kept[number] = own, tvm_ffi.from_dlpack(own)
        kept[0][...] = array
        return kept[1]

    def outputs(self, given: Sequence[RuntimeTensor], made: list[Array]) -> list[Array]:
        """The same outputs, in memory that is no input's: which lie in one is the same at each
        call."""
        if self._passed is None:
            inputs = list(map(_array, given))
            self._passed = [
                number
                for number, array in enumerate(made)
                if any(np.may_share_memory(array, each) for each in inputs)
            ]
        for number in self._passed:
            made[number] = made[number].copy()
        return made


@cache
def _load_runtime() -> object:
    """As `import tvm` does before it loads the compiler."""
    found = find_spec("tvm")
    if found is None or found.origin is None:
        raise ImportFailedError("libraries are run by TVM, which is missing; install apache-tvm")
    folder = Path(found.origin).parent / "lib"
    return load_lib_ctypes("tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=[folder])


def _tensor(array: Array) -> RuntimeTensor:
    """In place where kernels can read it so; a copy elsewhere."""
    flags, place = array.flags, array.__array_interface__["data"][0]  # `ctypes` takes longer
    if not (flags.c_contiguous and flags.writeable and place % ALIGNMENT == 0):
        copy = aligned_empty(array.shape, array.dtype)
        copy[...] = array
        array = copy
    return tvm_ffi.from_dlpack(array)


def _moving(function: Callable[..., object], moved: Sequence[Moved]) -> Callable[..., None]:
    def called(*tensors: RuntimeTensor) -> None:
        given, arrays = list(tensors), list(map(_array, tensors))
        for number, shape, axes in moved:
            split = arrays[number].reshape([shape[axis] for axis in axes])
            arrays[number] = aligned_empty(tuple(shape), split.dtype)
            arrays[number][...] = split.transpose(np.argsort(axes))
            given[number] = _tensor(arrays[number])
        function(*given)
        for number, _, axes in moved:
            if number == len(tensors) - 1:
                out = _array(tensors[number])
                out[...] = arrays[number].transpose(axes).reshape(out.shape)

    return called


def _narrowing(function: Callable[..., object], bfloat16: Sequence[Stored]) -> Callable[..., None]:
    def called(*tensors: RuntimeTensor) -> None:
        given, out = list(tensors), len(tensors) - 1
        for number, block in bfloat16:
            array = _array(tensors[number])
            bits = _in_blocks(rounded_array(array), block)
            aligned = aligned_empty(bits.shape, bits.dtype)
            aligned[...] = bits
            given[number] = _tensor(aligned)
        function(*given)
        if out in dict(bfloat16):
            array = _array(tensors[out])
            array[...] = _in_blocks(widened_array(_array(given[out])), array.shape[4])

    return called


def _in_blocks(packed: Array, block: int) -> Array:
    """(n, c / b, h, w, b) → (n, c / block, h, w, block)."""
    n, count, h, w, each = packed.shape
    if each == block:
        return packed
    channels = packed.transpose(0, 1, 4, 2, 3).reshape(n, count * each // block, block, h, w)
    return channels.transpose(0, 1, 3, 4, 2)


def _array(tensor: RuntimeTensor) -> Array:
    return np.from_dlpack(tensor)
