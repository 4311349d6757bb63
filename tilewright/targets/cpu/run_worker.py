"""Program of the child process of `targets.cpu.runner`, which runs one compiled kernel per call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import numpy as np

from tilewright.core.child_process import Arrays, Header, arguments, serve
from tilewright.core.files import Json, as_int, as_number, as_object, read_json
from tilewright.core.tvm_types import Array
from tilewright.targets.base import Space
from tilewright.targets.cpu import machine
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.measure import CpuBench
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.cpu.timing import Timing
from tilewright.targets.workload import Workload


class RunWorker:
    """Server in the process that runs kernels: answers calls one after another with a `CpuBench`.

    Args:
        recipe: the specification and the timing parameters, as JSON.
    """

    def __init__(self, recipe: Mapping[str, Json]) -> None:
        self.spec = CpuSpec(**cast(Any, as_object(recipe["spec"])))
        if self.spec.tiles:
            machine.allows_amx()  # each process has to request permission
        os.environ["TVM_NUM_THREADS"] = str(self.spec.threads)  # TVM reads it when it is loaded
        self.bench = CpuBench(self.spec, Timing(**cast(Any, as_object(recipe["timing"]))))
        self._tensors = lru_cache(maxsize=2)(self._new_tensors)

    def answer(self, header: Header, arrays: dict[str, Array]) -> tuple[Header, Arrays]:
        """Answer a call of the parent process.

        Args:
            header: name (`calibrate`, `peak`, `bandwidth`, `prepare`, `verify` or `measure`) and
                arguments of the call.
            arrays: for `verify` and `measure`, the kernel's library as `library`, uint8 array of
                shape (bytes,).

        Returns:
            Values and arrays of the reply. The reply to `measure` contains the array `seconds`, the
            seconds per call of each repeat, shape (repeats,).
        """
        call = header["call"]
        if call == "calibrate":
            return {"value": self.bench.calibrate()}, {}
        if call == "peak":
            return {"value": self.bench.peak()}, {}
        if call == "bandwidth":
            return {"value": self.bench.bandwidth(as_int(header["bytes"]))}, {}
        workload = Workload.from_json(as_object(header["workload"]))
        tensors = self._tensors(workload, as_int(header["seed"]))
        if call == "prepare":
            return {}, {}
        values = {name: as_int(value) for name, value in as_object(header["values"]).items()}
        library = np.asarray(arrays["library"], np.uint8)
        if call == "verify":
            return {"wrong": self.bench.wrong_values(library, tensors, values)}, {}
        quiet = as_number(header["reference"])
        measurement = self.bench.measure(library, tensors, values, quiet)
        return {"status": measurement.status, "reason": measurement.reason}, {
            "seconds": measurement.seconds
        }

    def _new_tensors(self, workload: Workload, seed: int) -> SampleTensors:
        space = Space("kernels", kernel_for(workload, self.spec).knobs(workload, self.spec))
        return SampleTensors(workload, self.spec, space, seed)


if __name__ == "__main__":
    (recipe,) = arguments()
    serve(RunWorker(as_object(read_json(recipe))).answer)
