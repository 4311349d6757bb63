"""Session options and exception types of onnxruntime.

Importing this module does not load onnxruntime; it is loaded when a function is called.
"""

from __future__ import annotations

from typing import Any

from tilewright.core.lazy_module import lazy_module

onnxruntime = lazy_module("onnxruntime")


def failures() -> tuple[type[Exception], ...]:
    """Return the exception types that onnxruntime raises if it rejects a model or an input."""
    native = vars(onnxruntime.capi.onnxruntime_pybind11_state)
    classes = (value for value in native.values() if isinstance(value, type))
    return (
        *(exception for exception in classes if issubclass(exception, Exception)),
        RuntimeError,
        ValueError,
    )


def quiet_options() -> Any:
    """Return session options without log output, whose idle threads sleep instead of spin."""
    options = onnxruntime.SessionOptions()
    # 4 is fatal: errors are reported as exceptions.
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
