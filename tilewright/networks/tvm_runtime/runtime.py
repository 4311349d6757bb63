"""Registers the packed function that offloaded modules call; it runs on the simulated board.

The program itself is an argument, so a module that is exported and loaded elsewhere needs nothing
but this function.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from tilewright.core.errors import TilewrightError
from tilewright.core.lazy_module import lazy_module
from tilewright.networks.tvm_runtime.program import HostProgram, OffloadError

tvm_ffi = lazy_module("tvm_ffi")

RUN = "tilewright.vta.run"
KEPT = 64
"""Programs that stay in memory, those called last."""

_programs: OrderedDict[str, HostProgram] = OrderedDict()
_lock = threading.Lock()


def register() -> None:
    """Make the function known to TVM in this process. `partition_for_vta` does it; a process that
    loads an exported module does it itself, before it makes the `VirtualMachine`."""
    tvm_ffi.register_global_func(RUN, run, override=True)


def run(digest: str, content: Any, *tensors: Any) -> None:
    """Run the program that is `content`, a uint8 tensor (bytes,) whose SHA-256 is `digest`, on the
    first of `tensors`, its inputs, and write the others, its outputs; all int8. Raises
    `ValueError`, which TVM passes on."""
    try:
        program = opened(digest, content)
        count = len(program.inputs)
        arrays = [np.from_dlpack(tensor) for tensor in tensors]
        if len(arrays) != count + len(program.outputs):
            raise ValueError(
                f"{len(arrays)} tensors are given to a program of {count} inputs and "
                f"{len(program.outputs)} outputs; partition the module again"
            )
        for array, made in zip(arrays[count:], program.run(arrays[:count]), strict=True):
            array[...] = made
    except TilewrightError as error:
        raise ValueError(str(error)) from None


def opened(digest: str, content: Any) -> HostProgram:
    """The program of a digest, read the first time from `content`, a uint8 tensor (bytes,). Raises
    `OffloadError` where the digest is not that of the bytes."""
    with _lock:
        if digest not in _programs:
            data = np.from_dlpack(content).tobytes()
            if hashlib.sha256(data).hexdigest() != digest:
                raise OffloadError(
                    "the program in the module has other bytes than when it was made; partition "
                    "the module again"
                )
            _programs[digest] = HostProgram(data)
            while len(_programs) > KEPT:
                _programs.popitem(last=False)
        _programs.move_to_end(digest)
        return _programs[digest]
