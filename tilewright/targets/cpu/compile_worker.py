"""Program of the compile processes of `targets.cpu.compile_pool`: compiles one config per call."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from tilewright.core.child_process import Arrays, Header, arguments, serve
from tilewright.core.files import as_int, as_object
from tilewright.core.tvm_types import Array
from tilewright.targets.cpu.compile import Compiler
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload


class CompileWorker:
    """Server in a compile process: answers calls one after another. TVM is loaded only once."""

    def __init__(self) -> None:
        self._compiler = Compiler()

    def answer(self, header: Header, arrays: dict[str, Array]) -> tuple[Header, Arrays]:
        """Answer a call of the parent process.

        Args:
            header: name and arguments of the call. The call `ready` loads TVM, `compile` compiles a
                config.
            arrays: not used.

        Returns:
            For `compile`, a header with the class of the failure and its reason ("" on success),
            and two arrays: the library, uint8 array of shape (bytes,), and the hidden features,
            shape (columns,). For `ready`, an empty reply.
        """
        if header["call"] == "ready":
            import tvm.s_tir.meta_schedule  # noqa: F401

            return {}, {}
        values = {name: as_int(value) for name, value in as_object(header["values"]).items()}
        compiled = self._compiler.compile(
            Workload.from_json(as_object(header["workload"])),
            CpuSpec(**cast(Any, as_object(header["spec"]))),
            values,
        )
        return {"failure": compiled.failure, "reason": compiled.reason}, {
            "library": np.frombuffer(compiled.library, np.uint8),
            "hidden": np.array(compiled.hidden),
        }


if __name__ == "__main__":
    arguments()
    serve(CompileWorker().answer)
