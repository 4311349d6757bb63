"""Properties of the processor, read from the operating system: caches, flags, governor, load."""

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
"""Number of the system call `arch_prctl` on x86-64, number of its request for permission to use a
register state, and number of the state of the AMX tiles."""
LLVM_FEATURES = {
    "fma": "fma", "f16c": "f16c", "avx2": "avx2", "avx_vnni": "avxvnni",
    **{f"avx512{item}": f"avx512{item}" for item in ("f", "cd", "bw", "dq", "vl")},
    **{f"avx512_{item}": f"avx512{item}" for item in ("vnni", "bf16", "fp16")},
}  # fmt: skip
"""Names of the instruction sets that the generated code may use: Linux's name to LLVM's name."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def flags() -> tuple[str, ...]:
    """Return Linux's names of the processor's instruction sets, sorted; empty if unknown."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return tuple(sorted(match[1].split())) if match else ()


@cache
def model() -> str:
    """Return the operating system's name of the processor; "" if unknown."""
    match = re.search(r"^model name\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return match[1].strip() if match else ""


@cache
def cache_bytes(level: int) -> int:
    """Return the size in bytes of a core's data cache, or 0 if it is unknown.

    Args:
        level: level of the cache, 1 to 3. The cache may be shared with other cores.
    """
    for folder in sorted((SYSTEM / "cpu0" / "cache").glob("index*")):
        kind, size = _read_text(folder / "type"), _read_text(folder / "size")
        if _read_text(folder / "level") == str(level) and kind in ("Data", "Unified") and size:
            return int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)
    return 0


def multiplies_bfloat16() -> bool:
    """Return whether the processor has AVX512-BF16 for vectors of 512 and of 256 bits.

    AVX512-BF16 consists of the dot product `vdpbf16ps` and conversions from float32 to bfloat16.
    """
    return platform.machine() == "x86_64" and {"avx512_bf16", "avx512vl"} <= set(flags())


@cache
def allows_amx() -> bool:
    """Return whether this process may use AMX tiles.

    The first call asks the Linux kernel for permission, which each process has to request (Linux's
    Documentation/arch/x86/xstate.rst).
    """
    if platform.machine() != "x86_64" or not {"amx_tile", "amx_bf16", "avx512_bf16"} <= set(
        flags()
    ):
        return False
    system = ctypes.CDLL(None, use_errno=True)
    return bool(system.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def corrections(known: Collection[str]) -> tuple[str, ...]:
    """Return corrections to the instruction sets that LLVM assumes this x86 processor has.

    LLVM derives the instruction sets from the processor's model number. In a virtual machine this
    derivation can be wrong, since the machine may report another model number or hide instruction
    sets.

    Args:
        known: LLVM's names of the instruction sets that LLVM assumes.

    Returns:
        LLVM attributes: `+avx512bf16` adds an instruction set, `-avx512f` removes one. Empty on
        other architectures.
    """
    available = flags()
    if platform.machine() != "x86_64" or not available:
        return ()
    return tuple(
        f"{'+' if flag in available else '-'}{name}"
        for flag, name in LLVM_FEATURES.items()
        if (flag in available) != (name in known)
    )


def governor() -> str:
    """Return the frequency governor, for example `performance`; "" if unknown."""
    return _read_text(SYSTEM / "cpu0" / "cpufreq" / "scaling_governor")


def load() -> float:
    """Return the number of running or waiting processes, averaged over the last minute."""
    return os.getloadavg()[0]


@cache
def llvm_name() -> str:
    """Return LLVM's name of this processor; "" if llvmlite is not installed."""
    try:
        binding = importlib.import_module("llvmlite.binding")
    except ImportError:
        return ""
    return str(binding.get_host_cpu_name())


def _read_text(path: Path) -> str:
    """Return the stripped text of a file, or "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@cache
def _cpuinfo() -> str:
    return _read_text(Path("/proc/cpuinfo"))
