"""Run regions (operators that TVM does not compile) with onnxruntime.

This module imports neither TVM's compiler nor ONNX.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.core.thread_pools import PerProcess
from tilewright.networks.errors import ImportFailedError, InputError, first_line
from tilewright.networks.onnxruntime_options import failures, quiet_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.networks.partition.region_models import RegionModel


onnxruntime, tvm_ffi = lazy_module("onnxruntime"), lazy_module("tvm_ffi")

Array = NDArray[Any]
FUNCTION = "tilewright.region{}"
"""Format of the name of the function that compiled code calls to run a region. It contains the
number of the region."""
_registering = threading.Lock()


class RegionSession:
    """An onnxruntime session for one region. Several threads may call it at the same time.

    Each forked process creates a session of its own, because the threads of a session do not
    survive a fork.

    Args:
        model: the region's serialised ONNX model, as bytes or as a uint8 array (for example a
            memory-mapped file).
        inputs: names of its inputs, in the order in which compiled code passes them.
        outputs: names of its outputs, in the order in which compiled code passes them.
        threads: number of threads that onnxruntime uses, 0 for one per core.

    Raises:
        ImportFailedError: onnxruntime rejects the model.
    """

    def __init__(
        self,
        model: bytes | NDArray[np.uint8],
        inputs: Sequence[str],
        outputs: Sequence[str],
        threads: int,
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._wanted = list(outputs)
        self._model, self._threads = model, threads
        self._session = PerProcess(self._create)
        self._session.get()

    def _create(self) -> Any:
        options = quiet_options()
        options.intra_op_num_threads = self._threads
        # onnxruntime's integer kernels saturate sums of products on processors without VNNI.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        try:
            return onnxruntime.InferenceSession(
                bytes(self._model), options, providers=["CPUExecutionProvider"]
            )
        except failures() as error:
            raise ImportFailedError(
                f"onnxruntime rejects a part of the network: {first_line(error)}; export the "
                "model again"
            ) from error

    @classmethod
    def for_region(cls, region: RegionModel, threads: int) -> RegionSession:
        """Create an onnxruntime session for a region.

        Args:
            region: the region with its model.
            threads: number of threads that onnxruntime uses, 0 for one per core.

        Raises:
            ImportFailedError: onnxruntime rejects the model.
        """
        return cls(region.model.SerializeToString(), region.inputs, region.outputs, threads)

    def run(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Run the region.

        Args:
            known: arrays by name, with at least the region's inputs.

        Returns:
            The outputs by name.

        Raises:
            InputError: onnxruntime fails on these inputs.
        """
        try:
            arrays = self._session.get().run(
                self._wanted, {name: known[name] for name in self.inputs}
            )
        except failures() as error:
            raise InputError(
                f"onnxruntime failed while computing: {first_line(error)}; check the values "
                "of the inputs"
            ) from error
        return dict(zip(self.outputs, arrays, strict=True))


class RegionCalls:
    """The functions through which compiled code calls onnxruntime, and the errors that they raise.

    An exception loses its type on its way through compiled code. The original exception is
    therefore stored here, separately for each thread, and `reraise_errors` raises it again.

    Args:
        sessions: one session per region, by region number.
    """

    def __init__(self, sessions: Sequence[RegionSession]) -> None:
        self._sessions = sessions
        self._caller = threading.local()

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Register the functions with TVM while a library is opened (context manager).

        TVM looks up the functions by name while it opens a library. Different libraries may use the
        same names, so only one thread at a time may open one.
        """
        if not self._sessions:
            yield
            return
        names = [FUNCTION.format(number) for number in range(len(self._sessions))]
        with _registering:
            for name, session in zip(names, self._sessions, strict=True):
                tvm_ffi.register_global_func(name, self._function(session), override=True)
            try:
                yield
            finally:
                for name in names:
                    tvm_ffi.registry.remove_global_func(name)

    @contextmanager
    def reraise_errors(self) -> Iterator[None]:
        """Raise an exception of an onnxruntime region with its original type (context manager)."""
        # TVM turns an exception of a registered function into its own error type.
        self._caller.error = None
        try:
            yield
        except Exception:
            if (error := self._caller.error) is None:
                raise
            raise error from None

    def _function(self, session: RegionSession) -> Callable[..., None]:
        def call(*tensors: Any) -> None:
            arrays = list(map(np.from_dlpack, tensors))
            input_count = len(session.inputs)
            try:
                results = session.run(dict(zip(session.inputs, arrays[:input_count], strict=True)))
                for (name, array), place in zip(results.items(), arrays[input_count:], strict=True):
                    # Compiled code relies on the inferred shape and type.
                    if array.shape != place.shape or array.dtype != place.dtype:
                        raise InputError(
                            f"onnxruntime returns '{name}' as {array.dtype} with shape "
                            f"{array.shape}, but the compiled code expects {place.dtype} "
                            f"with shape {place.shape}; export the model again with static "
                            "shapes"
                        )
                    place[...] = array
            except Exception as error:
                self._caller.error = error
                raise

        return call
