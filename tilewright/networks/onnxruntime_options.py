"""Options and errors of onnxruntime's sessions. Does not import ONNX."""

from __future__ import annotations

from typing import Any

from tilewright.core.lazy_module import lazy_module

onnxruntime = lazy_module("onnxruntime")


def failures() -> tuple[type[Exception], ...]:
    """Return what onnxruntime raises where it does not take a model or an array."""
    native = vars(onnxruntime.capi.onnxruntime_pybind11_state)
    own = (value for value in native.values() if isinstance(value, type))
    return (*(kind for kind in own if issubclass(kind, Exception)), RuntimeError, ValueError)


def quiet_options() -> Any:
    """Return session options that neither warn nor print, nor keep a processor busy with
    waiting."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
