"""C sources of the runtime that runs networks on a board, and names of the files that it loads.

The sources are part of the installation. An artifact contains only data and the digest of the
sources.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

from tilewright.core.files import write_atomically
from tilewright.targets.vta.spec import VtaSpec

NETWORK, INSTRUCTIONS, UOPS, CONSTANTS = (
    "network.bin", "instructions.bin", "uops.bin", "constants.bin",
)  # fmt: skip
FILES = (NETWORK, INSTRUCTIONS, UOPS, CONSTANTS)
SPEC_FIELDS = (
    "log_inp_width", "log_wgt_width", "log_acc_width", "log_batch", "log_block_in",
    "log_block_out", "log_uop_width", "log_uop_buff_size", "log_inp_buff_size",
    "log_wgt_buff_size", "log_acc_buff_size",
)  # fmt: skip
"""Keys of `vta_config.json` that the files contain, in the order in which they appear in the
header."""


MACHINE = "machine.h"
SOURCES = (
    "Makefile", "driver.h", "images.h", "main.c", "pipeline.c", "tilewright.c", "tilewright.h",
)  # fmt: skip


def copy_runtime(folder: Path, spec: VtaSpec) -> tuple[str, ...]:
    """Write the C sources of the runtime for a machine.

    Args:
        folder: destination, which is created if it does not exist.
        spec: the machine.

    Returns:
        Names of the files.

    Raises:
        OSError: a file cannot be written.
    """
    for name in SOURCES:
        write_atomically(folder / name, source(name), sync=False)
    write_atomically(folder / MACHINE, machine_header(spec), sync=False)
    return (*SOURCES, MACHINE)


def machine_header(spec: VtaSpec) -> bytes:
    """Return the C header that describes the machine for which the runtime is compiled."""
    head = "/* The machine of the bitstream. An artifact for another one is refused. */\n\n"
    lines = [f"#define MACHINE_{name.upper()} {getattr(spec, name)}\n" for name in SPEC_FIELDS]
    return (head + "".join(lines)).encode()


def sources_digest() -> str:
    """Return the SHA-256 digest of all sources and their names, as 64 hex digits."""
    whole = hashlib.sha256()
    for name in SOURCES:
        data = source(name)
        whole.update(f"{name} {len(data)}\n".encode() + data)
    return whole.hexdigest()


def source(name: str) -> bytes:
    """Return the content of one of `SOURCES`."""
    return (resources.files(__name__) / name).read_bytes()
