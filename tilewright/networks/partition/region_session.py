"""Runs regions with onnxruntime. Imports neither TVM's compiler nor ONNX."""

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
"""Name of the function that compiled code calls for the region of a number."""
_registering = threading.Lock()


class RegionSession:
    """One onnxruntime session for one region. Threads may call it at the same time. A process that
    was forked creates a session of its own: threads of a session do not survive a fork.

    Args:
        model: the region's ONNX model, serialised; an array of its bytes may be a mapped file.
        inputs: names of the tensors that it reads, in the order in which compiled code passes them.
        outputs: names of the tensors that it gives, in the same way.
        threads: how many threads onnxruntime uses; 0 for one per core.

    Raises:
        ImportFailedError: onnxruntime does not take the model.
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
        # Its integer kernels saturate sums of products on processors without VNNI.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        try:
            return onnxruntime.InferenceSession(
                bytes(self._model), options, providers=["CPUExecutionProvider"]
            )
        except failures() as error:
            raise ImportFailedError(
                f"onnxruntime does not take a part of the network: {first_line(error)}; export "
                "the model again"
            ) from error

    @classmethod
    def of(cls, region: RegionModel, threads: int) -> RegionSession:
        """Return a session for a region. Raises `ImportFailedError`."""
        return cls(region.model.SerializeToString(), region.inputs, region.outputs, threads)

    def run(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name; `known` has at least the inputs. Raises `InputError`."""
        try:
            made = self._session.get().run(
                self._wanted, {name: known[name] for name in self.inputs}
            )
        except failures() as error:
            raise InputError(
                f"onnxruntime stops while it computes: {first_line(error)}; check the values of "
                "the inputs"
            ) from error
        return dict(zip(self.outputs, made, strict=True))


class RegionCalls:
    """Functions through which compiled code calls regions, and the errors that they raised.

    An exception loses its type on its way through compiled code, so the calling thread's is kept
    here.
    """

    def __init__(self, sessions: Sequence[RegionSession]) -> None:
        self._sessions = sessions
        self._caller = threading.local()

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Make the functions known to TVM, which looks them up while it opens a library: two
        libraries may use the same names. One thread at a time."""
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
    def raising(self) -> Iterator[None]:
        """Raise what a region raised inside, in its own type."""
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
            given = len(session.inputs)
            try:
                made = session.run(dict(zip(session.inputs, arrays[:given], strict=True)))
                for (name, array), place in zip(made.items(), arrays[given:], strict=True):
                    # Compiled code relies on the shape and the type that were inferred.
                    if array.shape != place.shape or array.dtype != place.dtype:
                        raise InputError(
                            f"onnxruntime gives '{name}' as {array.dtype} of shape {array.shape}, "
                            f"and compiled code reads {place.dtype} of shape {place.shape}; export "
                            "the model again with static shapes"
                        )
                    place[...] = array
            except Exception as error:
                self._caller.error = error
                raise

        return call
