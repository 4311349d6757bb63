"""Describes what of this processor is used: threads, vector width, instruction set."""

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
"""Float32 numbers in a vector of 128, 256 or 512 bits."""
ARM_DOTS = "dotprod"
"""What LLVM calls the dot products of int8 that AArch64 has."""
DOTS = {16: "avx512vnni", 8: "avxvnni", 4: ARM_DOTS}
"""By lanes of a vector, what LLVM calls the instructions for dot products of int8."""
PRECISIONS = ("", "f32", "bf16", "int8", "auto")
"""Of layers: as the model says, all in float32, float ones in bfloat16, quantised ones in int8, or
each by tiles where the processor has them, else in float32 or by dot products of int8."""
AMX = "amx-bf16"
"""What LLVM calls the instructions for tiles of bfloat16."""
DOTS_BFLOAT16 = "avx512bf16"
"""What it calls those for dot products of bfloat16 in vectors. `auto` leaves them out: they may be
slower than multiplications of float32."""
AMX_INT8 = "amx-int8"
"""What it calls those for tiles of int8."""
PLAIN_TILES = "plain"
"""Says that tiles of int8 are multiplied by plain arithmetic, which any processor has: slow, to try
the loops around them."""
_FLAGS = {16: "avx512_vnni", 8: "avx_vnni", 4: "asimddp"}
"""What the operating system calls them."""


@dataclass(frozen=True)
class CpuSpec:
    """`threads` run a kernel, vectors hold `lanes` float32 numbers, code is for LLVM's processor
    `mcpu` ("" for the one of this machine). `model` is what the operating system calls it. `dots`
    is LLVM's name of the instructions for dot products of int8; "" where there are none.
    `precision` is that of layers, of `PRECISIONS`, `bfloat16` LLVM's name of the instructions that
    multiply bfloat16 in layers of a float network; "" where those are in float32. `int8_tiles`
    names those for tiles that quantised layers use; "" where they use dot products. `triple` is
    LLVM's name of the other kind of machine that code is for (`aarch64-linux-gnu`); "" for this
    one's."""

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
        """What the operating system calls the instruction set: `x86_64`, `aarch64`."""
        return self.triple.partition("-")[0] or platform.machine()

    @property
    def tiles(self) -> tuple[str, ...]:
        """The instructions for tiles that its code uses."""
        return tuple(each for each in (self.bfloat16, self.int8_tiles) if each in (AMX, AMX_INT8))

    @property
    def name(self) -> str:
        """What a user calls it: `cpu`, with what differs from this machine's own."""
        own = this_machine()
        said = [
            f"{key}={mine}"
            for key, mine, usual in (
                ("threads", self.threads, own.threads), ("lanes", self.lanes, own.lanes),
                ("precision", self.precision, ""),
            )
            if mine != usual
        ]  # fmt: skip
        return f"cpu:{','.join(said)}" if said else "cpu"

    @property
    def registers(self) -> int:
        """Vector registers that code for it may use."""
        return 16 if self.architecture == "x86_64" and self.lanes < 16 else 32

    def to_json(self) -> dict[str, Json]:
        """As JSON; without a precision as before there were any, so that schedules of then are of
        the same machine."""
        return {
            key: value
            for key, value in asdict(self).items()
            if value or key not in ("precision", "bfloat16", "int8_tiles", "triple")
        }

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> CpuSpec:
        """What `to_json` gave. Raises `SpecError`."""
        try:
            spec = CpuSpec(
                as_int(values["threads"]), as_int(values["lanes"]), as_text(values["mcpu"]),
                as_text(values["model"]), as_text(values.get("dots", "")),
                as_text(values.get("precision", "")), as_text(values.get("bfloat16", "")),
                as_text(values.get("int8_tiles", "")), as_text(values.get("triple", "")),
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            raise SpecError(f"this describes no processor ({error}); tune or build again") from None
        names = re.fullmatch(r"[\w.-]*", spec.mcpu) and spec.dots in ("", *DOTS.values())
        names = names and spec.precision in PRECISIONS and spec.bfloat16 in ("", AMX, DOTS_BFLOAT16)
        names = names and spec.int8_tiles in ("", AMX_INT8)
        names = names and bool(re.fullmatch(r"[\w.-]*", spec.triple))
        if spec.threads < 1 or spec.lanes not in LANES or not names:
            raise SpecError(f"this describes no processor ({spec}); tune or build again")
        return spec

    @staticmethod
    def parse(text: str) -> CpuSpec:
        """`threads=1,lanes=8,precision=bf16`, each optional. Raises `SpecError` for what this
        machine lacks."""
        own = this_machine()
        given: dict[str, str] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            found = re.fullmatch(r"(threads|lanes|precision)=(\w+)", item)
            if not found or found[1] in given or (found[1] != "precision") > found[2].isdecimal():
                raise SpecError(f"cannot read '{item}' of cpu:{text}; write cpu:threads=1,lanes=8")
            given[found[1]] = found[2]
        threads = int(given.get("threads", own.threads))
        lanes = int(given.get("lanes", own.lanes))
        if not 1 <= threads <= own.threads:
            raise SpecError(
                f"cpu:threads={threads}: this process may use {own.threads} cores; name 1 to "
                f"{own.threads}"
            )
        if lanes not in LANES or lanes > own.lanes:
            known = [str(n) for n in LANES if n <= own.lanes]
            raise SpecError(
                f"cpu:lanes={lanes}: vectors of this processor hold {' or '.join(known)} float32"
            )
        narrow = {8: "x86-64-v3", 4: "x86-64-v2"} if platform.machine() == "x86_64" else {}
        mcpu = own.mcpu if lanes == own.lanes else narrow.get(lanes, "")
        precision = given.get("precision", "")
        return CpuSpec(
            threads, lanes, mcpu, own.model, dots_of(lanes), precision, _bfloat16(precision, lanes),
            _int8_tiles(precision, lanes),
        )  # fmt: skip


@cache
def this_machine() -> CpuSpec:
    """All of it that this process may use."""
    known = machine.flags()
    lanes = 16 if "avx512f" in known else 8 if "avx2" in known else 4
    return CpuSpec(
        usable_cores(), lanes, "", machine.model() or platform.processor(), dots_of(lanes)
    )


def _bfloat16(precision: str, lanes: int) -> str:
    """The instructions for bfloat16 that float layers of a `precision` use, "" for none. Raises
    `SpecError` for one that nobody knows or this machine does not have."""
    if precision not in PRECISIONS:
        known = ", ".join(filter(None, PRECISIONS))
        raise SpecError(f"cpu:precision={precision}: no such precision; known: {known}")
    if precision not in ("bf16", "auto"):
        return ""
    found = bfloat16_of(lanes)
    if precision == "auto":
        return found if found == AMX else ""
    if found:
        return found
    raise SpecError(
        "cpu:precision=bf16 needs vectors of 16 and a processor with AVX512-BF16, or with AMX that "
        f"the operating system allows, and {machine.model() or 'this processor'} has neither; "
        "write precision=auto, which computes in float32 then"
    )


def bfloat16_of(lanes: int) -> str:
    """This machine's instructions that multiply bfloat16, by vectors of so many lanes; "" where
    there are none."""
    if lanes < 16:
        return ""
    return AMX if machine.allows_amx() else DOTS_BFLOAT16 if machine.multiplies_bfloat16() else ""


def _int8_tiles(precision: str, lanes: int) -> str:
    """The instructions for tiles that quantised layers of a `precision` use, "" for none. Where
    none is named they use dot products, as schedules do that were tuned before there were tiles."""
    has = lanes == 16 and "amx_int8" in machine.flags() and machine.allows_amx()
    return AMX_INT8 if precision in ("int8", "auto") and has else ""


def dots_of(lanes: int) -> str:
    """Of this machine's instructions for dot products those on vectors of so many lanes."""
    return DOTS[lanes] if _FLAGS.get(lanes) in machine.flags() else ""
