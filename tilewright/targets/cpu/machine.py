"""Reads what the operating system says of this processor: caches, instruction set, governor,
load."""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path

SYSTEM = Path("/sys/devices/system/cpu")
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""The number of a system call on x86-64, what it is asked to do, and of which registers."""
LLVM_FEATURES = {
    "fma": "fma", "f16c": "f16c", "avx2": "avx2", "avx_vnni": "avxvnni",
    **{f"avx512{each}": f"avx512{each}" for each in ("f", "cd", "bw", "dq", "vl")},
    **{f"avx512_{each}": f"avx512{each}" for each in ("vnni", "bf16", "fp16")},
}  # fmt: skip
"""What the operating system calls the instruction sets that code here may use, and what LLVM calls
them."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def flags() -> tuple[str, ...]:
    """The instruction sets the processor knows, sorted; empty where nobody says."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return tuple(sorted(found[1].split())) if found else ()


@cache
def model() -> str:
    """What the operating system calls the processor; "" where nobody says."""
    found = re.search(r"^model name\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else ""


@cache
def cache_bytes(level: int) -> int:
    """Of a core's data cache of that level, shared or its own; 0 where nobody says."""
    for folder in sorted((SYSTEM / "cpu0" / "cache").glob("index*")):
        kind, size = _said(folder / "type"), _said(folder / "size")
        if _said(folder / "level") == str(level) and kind in ("Data", "Unified") and size:
            return int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)
    return 0


def multiplies_bfloat16() -> bool:
    """Whether it has `vdpbf16ps` and rounds to bfloat16, in vectors of 512 bits and of 256."""
    return platform.machine() == "x86_64" and {"avx512_bf16", "avx512vl"} <= set(flags())


@cache
def allows_amx() -> bool:
    """Whether this process may use tiles of AMX; asks the kernel for it, as each process has to
    (Linux's Documentation/arch/x86/xstate.rst)."""
    if platform.machine() != "x86_64" or not {"amx_tile", "amx_bf16", "avx512_bf16"} <= set(
        flags()
    ):
        return False
    system = ctypes.CDLL(None, use_errno=True)
    return bool(system.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def corrections(known: Collection[str]) -> tuple[str, ...]:
    """What LLVM has to be told of an x86, where it would take `known` instruction sets for it:
    `+avx512bf16` adds one, `-avx512f` removes one. LLVM goes by the number of the model, and a
    virtual machine may give a processor another's number, or hide instruction sets of it."""
    own = flags()
    if platform.machine() != "x86_64" or not own:
        return ()
    return tuple(
        f"{'+' if flag in own else '-'}{name}"
        for flag, name in LLVM_FEATURES.items()
        if (flag in own) != (name in known)
    )


def governor() -> str:
    """Who sets the clock: `performance` holds it high; "" where nobody says."""
    return _said(SYSTEM / "cpu0" / "cpufreq" / "scaling_governor")


def load() -> float:
    """Processes that ran or waited for a core, on average over the last minute."""
    return os.getloadavg()[0]


@cache
def llvm_name() -> str:
    """What LLVM calls this processor; "" where llvmlite is not at hand."""
    try:
        binding = importlib.import_module("llvmlite.binding")
    except ImportError:
        return ""
    return str(binding.get_host_cpu_name())


def _said(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@cache
def _cpuinfo() -> str:
    return _said(Path("/proc/cpuinfo"))
