"""Names the files that a board loads, and writes the C sources that run them, for one machine.

The sources come from the installation: an artifact holds data, and names their digest.
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
"""The keys of `vta_config.json` that they state, in the order of the header."""


MACHINE = "machine.h"
SOURCES = (
    "Makefile", "driver.h", "images.h", "main.c", "pipeline.c", "tilewright.c", "tilewright.h",
)  # fmt: skip


def copy_runtime(folder: Path, spec: VtaSpec) -> tuple[str, ...]:
    """Write the sources for a machine into a folder, made if it is missing; returns their names.
    Raises `OSError`."""
    for name in SOURCES:
        write_atomically(folder / name, source(name), sync=False)
    write_atomically(folder / MACHINE, machine_header(spec), sync=False)
    return (*SOURCES, MACHINE)


def machine_header(spec: VtaSpec) -> bytes:
    """What the sources are compiled for: the keys of `vta_config.json` that an artifact states."""
    head = "/* The machine of the bitstream. An artifact for another one is refused. */\n\n"
    lines = [f"#define MACHINE_{name.upper()} {getattr(spec, name)}\n" for name in SPEC_FIELDS]
    return (head + "".join(lines)).encode()


def sources_digest() -> str:
    """SHA-256 of all sources with their names, 64 hex digits."""
    whole = hashlib.sha256()
    for name in SOURCES:
        data = source(name)
        whole.update(f"{name} {len(data)}\n".encode() + data)
    return whole.hexdigest()


def source(name: str) -> bytes:
    """One of `SOURCES`."""
    return (resources.files(__name__) / name).read_bytes()
