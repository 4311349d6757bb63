"""Assembly and linking of LLVM's output with the machine's C compiler, and instruction counts.

LLVM generates the code once, as assembly text. Instruction counts of the kernel are read from the
text. Assembling and linking the text takes a tenth of a second. Equal texts give equal libraries.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tilewright.core.errors import TilewrightError

LINKING = ("-shared", "-s", "-Wl,--build-id=none", "-x", "assembler")
"""Options for the C compiler that assembles and links a library. With them, the bytes of the
library depend only on the assembly text."""
_DEBUG = re.compile(r"^\t\.(?:file|loc)\t.*\n", re.MULTILINE)
_FUNCTION_END = re.compile(r"^\.Lfunc_end", re.MULTILINE)
_OWN = re.compile(r"^(tilewright\w*|\.L__tvm_parallel_lambda[\w.]*):", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\t([a-z][\w.]*)(?:[ \t]+(.*))?$", re.MULTILINE)


class CompilerMissing(TilewrightError):
    """Raised if there is no C compiler on this machine."""


class LinkFailed(TilewrightError):
    """Raised if the C compiler cannot make a library from LLVM's assembly."""


def c_compiler() -> str:
    """Return the path of the C compiler: `$CC`, `cc`, `gcc` or `clang`, whichever is found first.

    Raises:
        CompilerMissing: none of them is installed.
    """
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if path := shutil.which(name):
            return path
    raise CompilerMissing(
        "the target cpu links its kernels with a C compiler, and none was found (tried $CC, "
        "cc, gcc, clang); install one, on Debian and Ubuntu with: apt install gcc"
    )


def link(assembly: str) -> bytes:
    """Assemble and link an assembly text to a shared library.

    Args:
        assembly: the assembly text.

    Returns:
        The library's bytes.

    Raises:
        CompilerMissing: there is no C compiler.
        LinkFailed: the C compiler reports an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "kernel.s", Path(folder) / "kernel.so"
        source.write_text(_DEBUG.sub("", assembly))  # older assemblers cannot read LLVM's form
        command = [c_compiler(), *LINKING, "-o", str(library), str(source)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            error_lines = process.stderr.strip().splitlines() or [
                f"exit status {process.returncode}"
            ]
            raise LinkFailed(error_lines[-1].replace(folder, ""))
        return library.read_bytes()


@dataclass(frozen=True)
class Mix:
    """Instruction counts of a kernel, without the function that checks its arguments.

    Attributes:
        fused: vector multiply-adds and dot products.
        broadcasts: vector instructions that copy one value to all lanes.
        vector_loads: vector loads that do not read the stack.
        vector_stores: vector stores that do not write the stack.
        spills: vector loads from and stores to the stack.
        vectors: all vector instructions.
        wide: vector instructions on the widest registers that the function uses.
        total: all instructions.
        branches: jumps and calls.
        stack_bytes: bytes of the functions' stack frames.
    """

    fused: int = 0
    broadcasts: int = 0
    vector_loads: int = 0
    vector_stores: int = 0
    spills: int = 0
    vectors: int = 0
    wide: int = 0
    total: int = 0
    branches: int = 0
    stack_bytes: int = 0


def mix_of(assembly: str) -> Mix:
    """Count the instructions of a kernel.

    Args:
        assembly: LLVM's assembly text for x86-64 (AT&T syntax) or AArch64.

    Returns:
        The counts, summed over the functions that compute.
    """
    counts = dict.fromkeys(Mix.__dataclass_fields__, 0)
    for body in _bodies(assembly):
        arm = "%" not in body  # AT&T syntax marks registers with it
        (_count_arm if arm else _count_x86)(body, counts)
    return Mix(**counts)


def _bodies(assembly: str) -> list[str]:
    """Return the text of each function that computes, without the function that checks arguments.

    A library has one such function for the kernel and one per parallel loop.
    """
    bodies = []
    for label in _OWN.finditer(assembly):
        end = _FUNCTION_END.search(assembly, label.end())
        bodies.append(assembly[label.end() : end.start() if end else len(assembly)])
    return bodies


def _count_x86(body: str, counts: dict[str, int]) -> None:
    widest = next((register for register in ("%zmm", "%ymm") if register in body), "%xmm")
    for name, operands in _INSTRUCTION.findall(body):
        counts["total"] += 1
        if name[0] == "j" or name.startswith("call"):
            counts["branches"] += 1
        elif name == "subq" and operands.startswith("$") and operands.endswith(", %rsp"):
            counts["stack_bytes"] += int(operands[1:].partition(",")[0], 0)
        elif "mm" in operands:
            counts["vectors"] += 1
            counts["wide"] += widest in operands
            counts["fused"] += (
                "fmadd" in name or "fnmadd" in name or name.startswith(("vpdp", "vdpbf16"))
            )
            counts["broadcasts"] += "broadcast" in name or "{1to" in operands
            if "mov" in name:
                stack = "(%rsp" in operands or "(%rbp" in operands
                stores = operands.endswith(")") or operands.endswith("}")
                kind = "spills" if stack else "vector_stores" if stores else "vector_loads"
                counts[kind] += "(" in operands


def _count_arm(body: str, counts: dict[str, int]) -> None:
    for name, operands in _INSTRUCTION.findall(body):
        counts["total"] += 1
        vector = bool(re.search(r"\bq\d|\bv\d|\bz\d", operands))
        if name in ("b", "bl", "blr", "cbz", "cbnz", "tbz", "tbnz") or name.startswith("b."):
            counts["branches"] += 1
        elif name == "sub" and operands.startswith("sp, sp, #"):
            counts["stack_bytes"] += int(operands.rpartition("#")[2].partition(",")[0], 0)
        elif vector:
            counts["vectors"] += 1
            counts["wide"] += 1
            counts["fused"] += name in ("fmla", "fmls", "sdot", "udot")
            counts["broadcasts"] += name in ("dup", "ld1r") or (
                name == "fmla" and bool(re.search(r"\.s\[\d\]$", operands))
            )
            if name in ("ldr", "ldp", "ldur", "ld1", "str", "stp", "stur", "st1"):
                kind = "vector_loads" if name.startswith("ld") else "vector_stores"
                counts["spills" if "[sp" in operands else kind] += 1
