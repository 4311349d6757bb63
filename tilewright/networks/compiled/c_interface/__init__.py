"""Writes the C interface of libraries for a processor, with all that it needs of TVM's runtime."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from tilewright.core.files import write_atomically
from tilewright.networks.errors import ArtifactError

SOURCES = ("tilewright_cpu.h", "tilewright_cpu.c", "example.c", "Makefile")
RUNTIME = {
    "libtvm_runtime.so": ("tvm", "lib/libtvm_runtime.so"),
    "libtvm_ffi.so": ("tvm_ffi", "lib/libtvm_ffi.so"),
    "include/tvm/ffi/c_api.h": ("tvm_ffi", "include/tvm/ffi/c_api.h"),
    "include/dlpack/dlpack.h": ("tvm_ffi", "include/dlpack/dlpack.h"),
}
"""By name in the folder: a package, and the place of the file in it."""


def write_c_interface(folder: Path) -> None:
    """Write sources, headers and TVM's runtime into a folder, made if it is missing. Raises
    `ArtifactError` where TVM's package lacks a file, and `OSError`."""
    made = {name: (files(__package__) / name).read_bytes() for name in SOURCES}
    for name, (package, place) in RUNTIME.items():
        path = _package(package) / place
        if not path.is_file():
            raise ArtifactError(
                f"the package {package} has no {place}, which libraries are run with; install "
                "apache-tvm as this project's lock has it"
            )
        made[name] = path.read_bytes()
    for name, content in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, content)


def _package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        raise ArtifactError(f"the package {name} is missing; install apache-tvm again")
    return Path(found.origin).parent
