"""Compiles a rewritten module into one shared library, and loads and runs it."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.transform import FastMathTransform

from tilewright.networks.compiled.default_schedules import scheduling
from tilewright.networks.compiled.vector_math import vector_legalizations
from tilewright.networks.errors import ImportFailedError
from tilewright.networks.relax.failures import plain
from tilewright.networks.relax.uncompilable import uncompilable_operator
from tilewright.targets.kernels import ALIGNMENT

Array = NDArray[Any]
MAIN = "main"


def compiled(module: Any, target: Any, pipeline: str, source: Any) -> Any:
    """An executable of `main` and its kernels, which TVM's `pipeline` lowers. Raises
    `ImportFailedError` naming the operator of `source`, the module before it was rewritten, that
    fails alone."""
    passes = [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        FastMathTransform(),
        relax.transform.LegalizeOps(vector_legalizations()),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(), relax.transform.FuseOps(), relax.transform.FuseTIR(),
        scheduling(),
        relax.transform.RewriteDataflowReshape(), relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(), relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(), relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(), relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]  # fmt: skip
    try:
        with target:
            return tvm.compile(
                module,
                target=target,
                relax_pipeline=tvm.ir.transform.Sequential(passes),
                tir_pipeline=pipeline,
            )
    except Exception as error:
        said = uncompilable_operator(source["main"])
        said += f": {plain(error)}" if plain(error) else ""
        raise ImportFailedError(
            f"TVM {tvm.__version__} cannot compile the network for this processor"
            f"{said}; export the model with simpler operators"
        ) from error


def library_bytes(executable: Any) -> bytes:
    """The executable as a shared library with its weights. Raises `ImportFailedError` without a
    linker."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise ImportFailedError(
            "a network's library is linked by a C compiler, and there is none: install gcc or clang"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.so"
        executable.export_library(str(path), options=["-s", "-Wl,--build-id=none"])
        return path.read_bytes()


class CompiledNetwork:
    """A library in this process. It runs code: load none of strangers. Threads may call it at the
    same time: each has a virtual machine of its own."""

    def __init__(self, path: Path) -> None:
        self._module = tvm.runtime.load_module(str(path))
        self._caller = threading.local()

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """The network's outputs, shapes as it has them. Inputs at an address that is a multiple of
        `ALIGNMENT` are read in place; no output is copied."""
        result = self._main(*map(_tensor, arrays))
        if isinstance(result, tvm.runtime.Tensor):
            return [_array(result)]
        return [_array(each) for each in result]

    @property
    def _machine(self) -> Any:
        """The calling thread's own."""
        machine = getattr(self._caller, "machine", None)
        if machine is None:
            machine = self._caller.machine = relax.VirtualMachine(self._module, tvm.cpu())
            self._caller.main = machine[MAIN]
        return machine

    @property
    def _main(self) -> Any:
        if not hasattr(self._caller, "main"):
            self._machine  # noqa: B018
        return self._caller.main

    def function(self, name: str) -> Callable[..., object]:
        """One of its kernels."""
        found: Callable[..., object] = self._module.get_function(name, query_imports=True)
        return found

    def timed(self, arrays: Sequence[Array], times: int) -> NDArray[np.float64]:
        """Seconds of so many inferences, shape (times,); getting arrays in and out is not part of
        them."""
        main, given = self._main, list(map(tvm.runtime.tensor, arrays))
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

        def watch(function: Any, name: str, before: bool, result: Any, *_: Any) -> int:
            nonlocal begun
            now = time.perf_counter()
            if before:
                begun = now
            else:
                calls.append((str(name), now - begun))
            return 0

        self._machine.set_instrument(watch)
        try:
            self(arrays)
        finally:
            self._machine.set_instrument(lambda *_: 0)
        return calls


def _tensor(array: Array) -> Any:
    """In place where kernels can read it so; a copy elsewhere."""
    flags, place = array.flags, array.__array_interface__["data"][0]  # `ctypes` takes longer
    if flags.c_contiguous and flags.writeable and place % ALIGNMENT == 0:
        return tvm.runtime.from_dlpack(array)
    # not ascontiguousarray, which makes a vector of a lone number
    return tvm.runtime.tensor(np.asarray(array, order="C"))


def _array(tensor: Any) -> Array:
    return np.from_dlpack(tensor)
