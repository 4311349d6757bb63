"""Registration of the target kind `gemmini`, whose targets are presets or `gemmini:FILE.json`.

Heavy modules are imported only when a target is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.core.files import Json
from tilewright.targets.base import Target
from tilewright.targets.gemmini.design_space import draw_specifications
from tilewright.targets.gemmini.spec import DEFAULT_PRESET, GemminiSpec, preset_files
from tilewright.targets.registry import Property, TargetKind


def _spec(text: str) -> GemminiSpec:
    return GemminiSpec.load(text or DEFAULT_PRESET)


def _make(text: str, space: str) -> Target:
    return _target(_spec(text))


def _rebuild(specification: Mapping[str, Json], space: str) -> Target:
    return _target(GemminiSpec.from_mapping(specification))


def _target(spec: GemminiSpec) -> Target:
    from tilewright.targets.gemmini.target import GemminiTarget

    return GemminiTarget(spec)


def _presets() -> Sequence[str]:
    return list(preset_files())


def _check(text: str) -> None:
    _spec(text)


def _describe(preset: str) -> Mapping[str, str]:
    spec = _spec(preset)
    return {
        "array": f"{spec.dim}×{spec.dim}",
        "scratchpad": f"{spec.scratchpad_rows * spec.dim >> 10} KiB",
        "accumulator": f"{spec.accumulator_rows * spec.dim * 4 >> 10} KiB",
        "memory": f"{spec.memory_latency_cycles} cycles latency",
        "clock": f"{spec.clock_mhz:g} MHz",
    }


def _properties(text: str) -> Sequence[Property]:
    spec = _spec(text)
    return [
        Property("machine", name, getattr(spec, name), "", field.description or "")
        for name, field in type(spec).model_fields.items()
        if name != "name"
    ]


def _variants(count: int, seed: int) -> Sequence[Mapping[str, Json]]:
    return [spec.model_dump(exclude={"source"}) for spec in draw_specifications(count, seed)]


KIND = TargetKind(
    name="gemmini",
    summary="the Gemmini array, on a simulator exact to the cycle of its RTL",
    make=_make,
    presets=_presets,
    check=_check,
    describe=_describe,
    properties=_properties,
    rebuild=_rebuild,
    variants=_variants,
)
