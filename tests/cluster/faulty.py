"""Registers `targets.fault_injection` as a target family, as a plugin package would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.targets.base import Target
from tilewright.targets.fault_injection import make_target
from tilewright.targets.registry import TargetKind


def _rebuild(specification: Mapping[str, Any], space: str) -> Target:
    return make_target(**specification)


KIND = TargetKind(
    name="faulty",
    summary="a small accelerator that misbehaves on request",
    make=lambda text, space: make_target({}),
    rebuild=_rebuild,
)
