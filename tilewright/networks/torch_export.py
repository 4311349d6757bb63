"""Convert a torch.export archive (`.pt2`) to ONNX.

An archive may contain pickled objects, native libraries and expressions that PyTorch evaluates, so
reading it can run any code with the user's rights. Checking the file cannot prevent this. The
archive is therefore read only with the user's permission, and only by PyTorch. The conversion runs
in a child process, so that PyTorch does not occupy memory in this process.

`python -m tilewright.networks.torch_export` starts the child process.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.core.child_process import Header, Limits, RpcFailed, RpcProcess, arguments, serve
from tilewright.core.files import as_text
from tilewright.networks.errors import ModelFileError, first_line
from tilewright.networks.onnx.files import load_weights, read_model_file

if TYPE_CHECKING:
    import onnx

TORCH_SUFFIXES = (".pt2", ".pt", ".pth")
"""File name suffixes of torch.export archives (`.pt2`) and of other PyTorch files."""
INSTALL = "pip install 'tilewright[torch]'"
_MODEL = "model.onnx"
_SECONDS = 1800.0
"""Timeout in seconds for the conversion of a model."""


def convert_exported(path: Path, *, allow_code: bool) -> onnx.ModelProto:
    """Convert a torch.export archive to an ONNX model with all its weights.

    Args:
        path: path of the archive.
        allow_code: permit the code that the archive may contain to run.

    Returns:
        The ONNX model.

    Raises:
        ModelFileError: `allow_code` is false, PyTorch is missing, or it cannot read or convert the
            archive.
    """
    if not allow_code:
        raise ModelFileError(
            f"'{path}' is a torch.export file, and reading it can run any code with your "
            "user's rights; if you trust the person who made it, allow it with --allow-code "
            "(allow_code=True); otherwise ask for a file that torch.onnx.export wrote"
        )
    try:
        state = path.stat()
    except OSError as error:
        raise ModelFileError(
            f"cannot read '{path}': {error.strerror}; check the file and its permissions"
        ) from None
    return _convert_archive(str(path.absolute()), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1)  # because a build reads a model twice
def _convert_archive(path: str, changed_ns: int, size: int) -> onnx.ModelProto:
    """Convert an archive. The result is cached until the file changes.

    Args:
        path: path of the archive.
        changed_ns: time of the last change in nanoseconds. It is part of the cache key.
        size: size of the file in bytes. It is part of the cache key.
    """
    with tempfile.TemporaryDirectory() as folder:
        child = RpcProcess("tilewright.networks.torch_export", [], Limits(_SECONDS))
        try:
            reply, _ = child.call({"path": path, "folder": folder})
        except RpcFailed as error:
            raise ModelFileError(
                f"PyTorch could not read '{path}' ({error}); export it with torch.onnx.export"
            ) from None
        finally:
            child.stop()
        if "error" in reply:
            raise ModelFileError(str(reply.get("message") or reply["error"]))
        converted = Path(folder) / _MODEL
        return load_weights(read_model_file(converted), converted.parent)


def _answer(header: Header, _: Any) -> tuple[Header, dict[str, Any]]:
    path, folder = as_text(header["path"]), as_text(header["folder"])
    try:
        import onnxscript  # noqa: F401  torch.onnx.export needs it
        import torch
    except ImportError as error:
        raise ModelFileError(
            f"reading '{path}' needs PyTorch, and the package {error.name} is missing; "
            f"install it: {INSTALL}"
        ) from None
    try:
        # PyTorch raises exceptions of many types for a file that it cannot load.
        program = torch.export.load(path)
    except Exception as error:
        raise ModelFileError(
            f"torch {torch.__version__} cannot load '{path}': {first_line(error)}; export the "
            "model again with this version"
        ) from None
    try:
        torch.onnx.export(program, f=f"{folder}/{_MODEL}", dynamo=True, verbose=False)
    except Exception as error:
        raise ModelFileError(
            f"torch {torch.__version__} cannot convert '{path}' to ONNX: "
            f"{first_line(error)}; export the model with standard layers, or with "
            "torch.onnx.export"
        ) from None
    return {}, {}


if __name__ == "__main__":
    arguments()
    serve(_answer)
