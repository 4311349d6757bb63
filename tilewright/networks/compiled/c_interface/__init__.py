"""Write the C interface of CPU libraries, with the parts of TVM's runtime that it needs."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from tilewright.core.files import write_atomically
from tilewright.networks.errors import ArtifactError

SOURCES = ("tilewright_cpu.h", "tilewright_cpu.c", "example.c", "Makefile")
"""Source files of the C interface."""
RUNTIME = {
    "libtvm_runtime.so": ("tvm", "lib/libtvm_runtime.so"),
    "libtvm_ffi.so": ("tvm_ffi", "lib/libtvm_ffi.so"),
    "include/tvm/ffi/c_api.h": ("tvm_ffi", "include/tvm/ffi/c_api.h"),
    "include/dlpack/dlpack.h": ("tvm_ffi", "include/dlpack/dlpack.h"),
}
"""Files of TVM's runtime that are copied to an artifact. Maps the name of the copy to the Python
package that provides the file and the path in this package."""


def write_c_interface(folder: Path) -> None:
    """Write the C interface's sources and headers and TVM's runtime libraries into a folder.

    Args:
        folder: the folder. It is created if it does not exist.

    Raises:
        ArtifactError: a TVM package is missing or lacks a file.
        OSError: a file cannot be written.
    """
    contents = {name: (files(__package__) / name).read_bytes() for name in SOURCES}
    for name, (package, location) in RUNTIME.items():
        path = _package(package) / location
        if not path.is_file():
            raise ArtifactError(
                f"the package {package} has no {location}, which is needed to run libraries; "
                "install the version of apache-tvm that this project's lock file names"
            )
        contents[name] = path.read_bytes()
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, content)


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ArtifactError(f"the package {name} is missing; install apache-tvm again")
    return Path(spec.origin).parent
