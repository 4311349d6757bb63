"""How this processor is named as a target: `cpu`, or `cpu:threads=1,lanes=8`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from targets.base import Target
from targets.cpu.spec import CpuSpec
from targets.files import Json
from targets.registry import TargetKind


def _make(text: str, space: str) -> Target:
    from targets.cpu.target import CpuTarget

    return CpuTarget(CpuSpec.parse(text))


def _check(text: str) -> None:
    CpuSpec.parse(text)


KIND = TargetKind(
    name="cpu",
    summary="this processor: TensorIR kernels compiled by LLVM, really measured",
    make=_make,
    check=_check,
)
