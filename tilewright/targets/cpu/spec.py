"""Description of the processor that kernels are compiled for: threads, vectors and instructions.

A specification is read from the target's name, for example `cpu:threads=1,lanes=8`.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache

from tilewright.core.errors import SpecError
from tilewright.core.files import Json, as_int, as_text
from tilewright.core.process_info import usable_cores
from tilewright.targets.cpu import machine

LANES = (4, 8, 16)
"""Numbers of float32 values per vector with 128, 256 and 512 bits."""
ARM_DOTS = "dotprod"
"""LLVM's name of the int8 dot-product instructions of AArch64."""
DOTS = {16: "avx512vnni", 8: "avxvnni", 4: ARM_DOTS}
"""LLVM's names of the int8 dot-product instructions, by the number of float32 values per vector."""
PRECISIONS = ("", "f32", "bf16", "int8", "auto")
"""Precisions in which layers can be computed.

- `""`: float32 for float layers, int8 dot products for quantised layers.
- `f32`: float32 for all layers.
- `bf16`: bfloat16 for float layers.
- `int8`: int8 tile instructions for quantised layers.
- `auto`: tile instructions wherever the processor has them; otherwise float32 or int8 dot products.
"""
AMX = "amx-bf16"
"""LLVM's name of the bfloat16 tile instructions."""
DOTS_BFLOAT16 = "avx512bf16"
"""LLVM's name of the bfloat16 dot-product instructions on vectors. The precision `auto` does not
use them, because they may be slower than float32 multiplications."""
AMX_INT8 = "amx-int8"
"""LLVM's name of the int8 tile instructions."""
PLAIN_TILES = "plain"
"""Name of a substitute for int8 tile instructions that multiplies tiles with ordinary arithmetic.
It is slow but runs on any processor, so that the loops around the tile instructions can be
tested."""
_FLAGS = {16: "avx512_vnni", 8: "avx_vnni", 4: "asimddp"}
"""Linux's names of the instructions in `DOTS`, by the number of float32 values per vector."""


@dataclass(frozen=True)
class CpuSpec:
    """The processor, or the part of it, that kernels are compiled for.

    Attributes:
        threads: number of threads that run a kernel.
        lanes: float32 values per vector, one of `LANES`.
        mcpu: LLVM's name of the processor to compile for; "" for this machine's processor.
        model: the operating system's name of the processor.
        dots: LLVM's name of the int8 dot-product instructions; "" if there are none.
        precision: requested precision of layers, one of `PRECISIONS`.
        bfloat16: LLVM's name of the bfloat16 instructions that the layers of a float network use;
            "" if these layers are computed in float32.
        int8_tiles: LLVM's name of the tile instructions that quantised layers use; "" if quantised
            layers use dot products on vectors.
        triple: LLVM's target triple if the code is cross-compiled, for example `aarch64-linux-gnu`;
            "" for this machine.
    """

    threads: int
    lanes: int
    mcpu: str
    model: str
    dots: str = ""
    precision: str = ""
    bfloat16: str = ""
    int8_tiles: str = ""
    triple: str = ""

    @property
    def architecture(self) -> str:
        """The operating system's name of the instruction set: `x86_64` or `aarch64`."""
        return self.triple.partition("-")[0] or platform.machine()

    @property
    def tiles(self) -> tuple[str, ...]:
        """LLVM's names of the tile instructions that the code uses."""
        return tuple(name for name in (self.bfloat16, self.int8_tiles) if name in (AMX, AMX_INT8))

    @property
    def name(self) -> str:
        """The target's name: `cpu`, followed by the settings that differ from the defaults."""
        host = this_machine()
        differences = [
            f"{key}={value}"
            for key, value, usual in (
                ("threads", self.threads, host.threads), ("lanes", self.lanes, host.lanes),
                ("precision", self.precision, ""),
            )
            if value != usual
        ]  # fmt: skip
        return f"cpu:{','.join(differences)}" if differences else "cpu"

    @property
    def registers(self) -> int:
        """Number of vector registers that the code may use."""
        return 16 if self.architecture == "x86_64" and self.lanes < 16 else 32

    def to_json(self) -> dict[str, Json]:
        """Return the specification as JSON.

        Fields that were added in later versions are omitted while they have their default value.
        Schedules that were tuned with an earlier version therefore still match the same machine.
        """
        return {
            key: value
            for key, value in asdict(self).items()
            if value or key not in ("precision", "bfloat16", "int8_tiles", "triple")
        }

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> CpuSpec:
        """Read a specification that `to_json` wrote.

        Args:
            values: the specification as JSON.

        Returns:
            The specification.

        Raises:
            SpecError: a field is missing or has an invalid value.
        """
        try:
            spec = CpuSpec(
                as_int(values["threads"]), as_int(values["lanes"]), as_text(values["mcpu"]),
                as_text(values["model"]), as_text(values.get("dots", "")),
                as_text(values.get("precision", "")), as_text(values.get("bfloat16", "")),
                as_text(values.get("int8_tiles", "")), as_text(values.get("triple", "")),
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            raise SpecError(
                f"the specification does not describe a processor ({error}); tune or build again"
            ) from None
        names = re.fullmatch(r"[\w.-]*", spec.mcpu) and spec.dots in ("", *DOTS.values())
        names = names and spec.precision in PRECISIONS and spec.bfloat16 in ("", AMX, DOTS_BFLOAT16)
        names = names and spec.int8_tiles in ("", AMX_INT8)
        names = names and bool(re.fullmatch(r"[\w.-]*", spec.triple))
        if spec.threads < 1 or spec.lanes not in LANES or not names:
            raise SpecError(
                f"the specification does not describe a processor ({spec}); tune or build again"
            )
        return spec

    @staticmethod
    def parse(text: str) -> CpuSpec:
        """Read a specification from the text after `cpu:` in a target's name.

        Args:
            text: comma-separated settings, each of which is optional, for example
                `threads=1,lanes=8,precision=bf16`. Settings that are absent take this machine's
                values.

        Returns:
            The specification.

        Raises:
            SpecError: the text cannot be parsed, or this machine lacks the requested threads,
                vector width or instructions.
        """
        host = this_machine()
        settings: dict[str, str] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            setting = re.fullmatch(r"(threads|lanes|precision)=(\w+)", item)
            if (
                not setting
                or setting[1] in settings
                or (setting[1] != "precision") > setting[2].isdecimal()
            ):
                raise SpecError(f"cannot read '{item}' of cpu:{text}; write cpu:threads=1,lanes=8")
            settings[setting[1]] = setting[2]
        threads = int(settings.get("threads", host.threads))
        lanes = int(settings.get("lanes", host.lanes))
        if not 1 <= threads <= host.threads:
            raise SpecError(
                f"cpu:threads={threads} is out of range, because this process may use "
                f"{host.threads} cores; choose 1 to {host.threads}"
            )
        if lanes not in LANES or lanes > host.lanes:
            known = [str(n) for n in LANES if n <= host.lanes]
            raise SpecError(
                f"cpu:lanes={lanes} is not supported: vectors of this processor hold "
                f"{' or '.join(known)} float32 numbers"
            )
        narrow = {8: "x86-64-v3", 4: "x86-64-v2"} if platform.machine() == "x86_64" else {}
        mcpu = host.mcpu if lanes == host.lanes else narrow.get(lanes, "")
        precision = settings.get("precision", "")
        return CpuSpec(
            threads, lanes, mcpu, host.model, dots_of(lanes), precision,
            _bfloat16(precision, lanes), _int8_tiles(precision, lanes),
        )  # fmt: skip


@cache
def this_machine() -> CpuSpec:
    """Return the specification of this machine, with all cores that this process may use."""
    known = machine.flags()
    lanes = 16 if "avx512f" in known else 8 if "avx2" in known else 4
    return CpuSpec(
        usable_cores(), lanes, "", machine.model() or platform.processor(), dots_of(lanes)
    )


def _bfloat16(precision: str, lanes: int) -> str:
    """Choose the bfloat16 instructions for a requested precision.

    Args:
        precision: one of `PRECISIONS`.
        lanes: float32 values per vector.

    Returns:
        LLVM's name of the instructions; "" to compute in float32.

    Raises:
        SpecError: the precision is unknown, or this machine does not have the instructions.
    """
    if precision not in PRECISIONS:
        known = ", ".join(filter(None, PRECISIONS))
        raise SpecError(f"cpu:precision={precision}: unknown precision; choose one of {known}")
    if precision not in ("bf16", "auto"):
        return ""
    instructions = bfloat16_of(lanes)
    if precision == "auto":
        return instructions if instructions == AMX else ""
    if instructions:
        return instructions
    raise SpecError(
        "cpu:precision=bf16 needs vectors of 16 float32 numbers and AVX512-BF16, or AMX "
        "with the permission of the operating system, but "
        f"{machine.model() or 'this processor'} has neither; write precision=auto, which "
        "then computes in float32"
    )


def bfloat16_of(lanes: int) -> str:
    """Return LLVM's name of this machine's bfloat16 instructions, or "" if it has none.

    Args:
        lanes: float32 values per vector. The bfloat16 instructions need 16.
    """
    if lanes < 16:
        return ""
    return AMX if machine.allows_amx() else DOTS_BFLOAT16 if machine.multiplies_bfloat16() else ""


def _int8_tiles(precision: str, lanes: int) -> str:
    """Choose the int8 tile instructions for a requested precision.

    Without a precision, quantised layers use dot products, so that schedules that were tuned before
    tile instructions were supported stay valid.

    Args:
        precision: one of `PRECISIONS`.
        lanes: float32 values per vector.

    Returns:
        LLVM's name of the instructions; "" to use dot products on vectors.
    """
    has = lanes == 16 and "amx_int8" in machine.flags() and machine.allows_amx()
    return AMX_INT8 if precision in ("int8", "auto") and has else ""


def dots_of(lanes: int) -> str:
    """Return LLVM's name of this machine's int8 dot-product instructions, or "" if it has none.

    Args:
        lanes: float32 values per vector, which selects the width of the instructions.
    """
    return DOTS[lanes] if _FLAGS.get(lanes) in machine.flags() else ""
