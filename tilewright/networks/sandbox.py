"""Read an untrusted model file in a child process with limits on memory and time.

The parent process never parses the file. It receives the analysis of the model as JSON. A file that
crashes the parser or exhausts its memory therefore leads to one clear error. Built-in networks need
no child process.

`python -m tilewright.networks.sandbox` starts the child process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from tilewright.core.child_process import (
    Header,
    Limits,
    RpcFailed,
    RpcProcess,
    RpcTimeout,
    arguments,
    least_memory,
    serve,
)
from tilewright.core.errors import TilewrightError
from tilewright.core.files import as_int, as_list, as_object, as_text
from tilewright.networks import errors
from tilewright.networks.imported_model import Examined
from tilewright.networks.model_source import InputShapes, Source, read_source
from tilewright.networks.onnx.size_limits import machine_memory_bytes

if TYPE_CHECKING:
    import onnx

    from tilewright.networks.imported_model import Whole
    from tilewright.networks.onnx.graph import NormalGraph
    from tilewright.networks.partition.region_models import LastRegions
    from tilewright.networks.partition.regions import Region

_LEAST_MEMORY, _MOST_MEMORY, _MEMORY_SHARE = 4 << 30, 12 << 30, 0.75
READING = Limits(
    seconds=300.0,
    memory_bytes=max(_LEAST_MEMORY, min(_MOST_MEMORY, int(machine_memory_bytes() * _MEMORY_SHARE))),
)
"""Time and memory limits of the child process. They suffice to read files of up to 2 GiB with the
importer and its libraries."""
_LIBRARIES = 1 << 30
"""Minimum address space in bytes that the child process needs. With less, the importer's libraries
fail with unclear errors."""


class SandboxedSource:
    """A model file that a child process analyses.

    Only `examine` uses the child process. All other methods read the file in this process, after
    the child process has analysed it without an error.

    Args:
        path: path of the model file.
        input_shapes: shape for each dynamic input, by input name.
        limits: time and memory limits of the child process.
    """

    def __init__(self, path: Path, input_shapes: InputShapes, limits: Limits = READING) -> None:
        self.name = str(path)
        self._path = path
        self._shapes = {name: [int(size) for size in s] for name, s in input_shapes.items()}
        self._limits = limits

    def examine(self) -> Examined:
        """Analyse the model in a child process.

        Returns:
            The analysis.

        Raises:
            ModelFileError: the file is missing, or the child process crashed or exceeded its
                limits. Exceptions of `networks.errors` that the child process raises are raised
                here as well.
        """
        if not self._path.is_file():
            raise errors.ModelFileError(
                f"'{self._path}' is not a file; give the path of an ONNX file, or the name "
                "of a built-in network"
            )
        child = RpcProcess("tilewright.networks.sandbox", [], self._limits)
        try:
            reply, _ = child.call({"path": self.name, "shapes": self._shapes})
        except RpcTimeout:
            raise errors.ModelFileError(
                f"reading '{self.name}' took more than {self._limits.seconds:g} s and was "
                "stopped; simplify the model, or export it again"
            ) from None
        except RpcFailed as error:
            if limit := self._users_limit():
                raise errors.ModelFileError(
                    f"'{self.name}' could not be read within {limit} ({error}); raise or "
                    "remove the limit. If reading fails again, the file is damaged or "
                    "malicious"
                ) from None
            raise errors.ModelFileError(
                f"reading '{self.name}' crashed the reader process ({error}); the file is "
                "damaged or malicious: export it again"
            ) from None
        finally:
            child.stop()
        if "error" in reply:
            kind, limit = str(reply["error"]), self._users_limit()
            scarce = least_memory(_LIBRARIES) < _LIBRARIES and not hasattr(errors, kind)
            if limit and (kind == "MemoryError" or scarce):
                raise errors.ModelFileError(
                    f"'{self.name}' could not be read within {limit}; raise or remove the limit"
                )
            raise _to_error(self.name, kind, str(reply.get("message", "")))
        try:
            return _examined_adapter().validate_python(reply["examined"])
        except (ValidationError, KeyError):
            raise errors.ModelFileError(
                f"the reader process gave no valid result for '{self.name}'; the file is "
                "damaged: export it again"
            ) from None

    def _users_limit(self) -> str:
        """Describe the memory limit that the user's shell sets, for messages.

        Returns:
            The text, or "" if the shell's limit is not below the memory limit of the child process.
        """
        most = self._limits.memory_bytes
        least = most if most is None else least_memory(most)
        if least is None or least == most:
            return ""
        return f"this shell's limit of {least / (1 << 30):.3g} GiB of memory (ulimit -v)"

    def prepare(self) -> None:
        """Read the weights and normalise the model with them."""
        self._source_here.prepare()

    def weighted(self) -> onnx.ModelProto:
        """Return the model as an ONNX graph with its weights."""
        return self._source_here.weighted()

    def fixed(self) -> NormalGraph:
        """Return the model with its weights and static shapes."""
        return self._source_here.fixed()

    def split(self, *, without_layers: bool = False) -> tuple[Source | None, LastRegions | None]:
        """Split the model into its compiled part and the onnxruntime regions that run after it."""
        if not without_layers:  # nothing is compiled, so TVM needs no weights
            self._source_here.prepare()
            self._source_here.examine()
        return self._source_here.split(without_layers=without_layers)

    def as_region(self, regions: Sequence[Region], macs: int) -> LastRegions:
        """Return the whole model as one onnxruntime region."""
        return self._source_here.as_region(regions, macs)

    def refusing(self, operators: Mapping[str, str]) -> Source:
        """Return the same model, in which onnxruntime also runs the given operators."""
        return self._source_here.refusing(operators) if operators else self

    def whole(self) -> Whole:
        """Import the whole model with its weights."""
        return self._source_here.whole()

    @cached_property
    def _source_here(self) -> Source:
        """The model, opened in this process."""
        return read_source(self._path, self._shapes)


def _to_error(name: str, kind: str, message: str) -> TilewrightError:
    """Convert an exception that the child process reported to an exception of `networks.errors`.

    Args:
        name: name of the model for messages.
        kind: class name of the exception.
        message: message of the exception.
    """
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, TilewrightError):
        return known(message)
    if kind == "MemoryError":
        message = "it needs more memory than the reader process may use"
    reason = (message.strip().splitlines() or [kind])[0]
    return errors.ModelFileError(
        f"'{name}' cannot be read: {reason}; simplify the model, or export it again"
    )


@lru_cache(maxsize=1)
def _examined_adapter() -> TypeAdapter[Examined]:
    """Return the (cached) pydantic adapter that converts an analysis to and from JSON."""
    return TypeAdapter(Examined)


def _answer(header: Header, _: Any) -> tuple[Header, dict[str, Any]]:
    shapes = as_object(header["shapes"])
    sizes = {name: [as_int(size) for size in as_list(shape)] for name, shape in shapes.items()}
    examined = read_source(Path(as_text(header["path"])), sizes).examine()
    return {"examined": _examined_adapter().dump_python(examined, mode="json")}, {}


if __name__ == "__main__":
    arguments()
    serve(_answer)
