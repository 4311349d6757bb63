"""Registration of the CPU target, whose name is `cpu` or, for example, `cpu:threads=1,lanes=8`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.core.errors import SpecError
from tilewright.core.files import Json
from tilewright.targets.base import Target
from tilewright.targets.cpu import machine
from tilewright.targets.cpu.assembly import c_compiler
from tilewright.targets.cpu.spec import (
    DOTS_BFLOAT16,
    LANES,
    CpuSpec,
    bfloat16_of,
    dots_of,
    this_machine,
)
from tilewright.targets.registry import Property, TargetKind

BUSY = 0.5
"""Load of the machine above which timings are noisy: number of running processes per core, averaged
over one minute."""


def _make(text: str, space: str) -> Target:
    return _target(CpuSpec.parse(text))


def _target(spec: CpuSpec) -> Target:
    from tilewright.targets.cpu.target import CpuTarget

    return CpuTarget(spec)


def _check(text: str) -> None:
    CpuSpec.parse(text)
    c_compiler()


def _rebuild(specification: Mapping[str, Json], space: str) -> Target:
    _check_code(specification)
    return _target(CpuSpec.from_json(specification))


def _check_code(specification: Mapping[str, Json]) -> None:
    """Raise `SpecError` if code that was built for a specification cannot run on this machine.

    Code that was built for more threads than there are cores runs on fewer cores.
    """
    spec, host = CpuSpec.from_json(specification), this_machine()
    if spec.model != host.model or spec.lanes > host.lanes:
        raise SpecError(
            f"the schedules or code were made for {spec.model} ({spec.lanes} lanes), but "
            f"this machine is {host.model} ({host.lanes} lanes); tune and build again on "
            "this machine"
        )
    if spec.architecture != host.architecture:
        raise SpecError(
            f"the schedules or code were made for {spec.architecture}, but this machine is "
            f"{host.architecture}; tune and build again on this machine"
        )
    if spec.dots not in ("", dots_of(spec.lanes)):
        raise SpecError(
            f"the code needs the instructions {spec.dots}, which this machine does not have; "
            "tune and build again on this machine"
        )
    if spec.tiles and not machine.allows_amx():
        raise SpecError(
            "the code needs AMX, which this machine or its operating system does not "
            "support; build again without --precision"
        )
    if spec.bfloat16 == DOTS_BFLOAT16 and not machine.multiplies_bfloat16():
        raise SpecError(
            "the code needs AVX512-BF16, which this machine does not support; build again "
            "without --precision"
        )


def _variants(count: int, seed: int) -> Sequence[Mapping[str, Json]]:
    """Return specifications of parts of this processor, to train models for several machines.

    There is one specification for each combination of a number of threads and a vector width. The
    numbers of threads are all threads of the processor and the powers of two below.

    Args:
        count: maximum number of specifications.
        seed: not used.
    """
    host = this_machine()
    threads = sorted({host.threads} | {1 << k for k in range(host.threads.bit_length())})
    specifications = [
        CpuSpec.parse(f"threads={cores},lanes={lanes}").to_json()
        for cores in threads
        if cores <= host.threads
        for lanes in LANES
        if lanes <= host.lanes
    ]
    return specifications[:count]


def _remarks(text: str) -> Sequence[str]:
    remarks, cores = [], this_machine().threads
    if machine.load() > BUSY * cores:
        remarks.append(
            f"other programs keep the machine busy (load {machine.load():.1f} on {cores} "
            "cores), so measurements take longer and are less accurate; end them before "
            "tuning"
        )
    if machine.governor() not in ("", "performance"):
        remarks.append(
            f"the frequency governor is '{machine.governor()}'; measurements are steadier "
            "with 'performance' (cpupower frequency-set -g performance)"
        )
    return remarks


def _properties(text: str) -> Sequence[Property]:
    spec = CpuSpec.parse(text)
    levels = [
        Property("caches", f"L{level}", machine.cache_bytes(level), "bytes", "data cache of a core")
        for level in (1, 2, 3)
        if machine.cache_bytes(level)
    ]
    return [
        Property("processor", "model", spec.model, "", "name of the processor model"),
        Property(
            "processor", "threads", spec.threads, "", "threads that run a kernel, one per core"
        ),
        Property("processor", "lanes", spec.lanes, "float32", "numbers per vector"),
        Property("processor", "registers", spec.registers, "", "vector registers"),
        Property(
            "processor",
            "int8",
            _int8_of(spec),
            "",
            "instructions for int8 multiplication, by LLVM's name",
        ),
        Property(
            "processor",
            "bfloat16",
            bfloat16_of(spec.lanes) or "none",
            "",
            "instructions for bfloat16 multiplication",
        ),
        Property(
            "processor",
            "amx",
            "yes" if machine.allows_amx() else "no",
            "",
            "matrix tile instructions",
        ),
        Property(
            "processor",
            "mcpu",
            spec.mcpu or machine.llvm_name(),
            "",
            "the processor that LLVM compiles for",
        ),
        Property("processor", "governor", machine.governor(), "", "frequency governor"),
        Property(
            "processor",
            "load",
            machine.load(),
            "",
            "average number of running processes over a minute",
        ),
        *levels,
    ]


def _int8_of(spec: CpuSpec) -> str:
    """Return the name of the instructions that multiply int8 values, or "none".

    LLVM's names of tile and dot-product instructions are used if the processor has them, and
    otherwise `pmaddwd` on x86.
    """
    pairs = "pmaddwd" if spec.architecture == "x86_64" else "none"
    return spec.int8_tiles or spec.dots or pairs


def _with_run_limit(target: Target, seconds: float) -> Target:
    from tilewright.targets.cpu.target import CpuTarget

    assert isinstance(target, CpuTarget), "this kind makes no other"
    return target.with_run_limit(seconds)


KIND = TargetKind(
    name="cpu",
    summary="this CPU: TensorIR kernels compiled by LLVM and measured on this machine",
    make=_make,
    check=_check,
    remarks=_remarks,
    properties=_properties,
    rebuild=_rebuild,
    check_code=_check_code,
    variants=_variants,
    with_run_limit=_with_run_limit,
)
