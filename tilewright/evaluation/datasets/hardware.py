"""Chooses the hardware of a dataset: drawn by a seed, or named by the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json
from tilewright.evaluation.datasets.errors import DatasetError
from tilewright.targets.base import Target
from tilewright.targets.capabilities import specification_of
from tilewright.targets.registry import check_target, kind_of, rebuild, target_kinds

DRAWN, MEASURED = "vta", "cpu"
"""The kinds of targets that are drawn where none is named: rows in cycles that are simulated, and
in seconds that are measured."""
SIMULATED = (DRAWN, "gemmini")
"""All kinds whose rows are in simulated cycles."""
_SPACES = {DRAWN: "extended", "gemmini": "", MEASURED: ""}


@dataclass(frozen=True)
class DatasetHardware:
    """A piece of hardware: `id` and `fingerprint` are its target's, `features` as
    `Target.hardware_features` gave them when the plan was made."""

    id: str
    kind: str
    name: str
    features: dict[str, float]
    specification: dict[str, Any]
    space: str = ""


Found = list[tuple[DatasetHardware, Target]]


def check_targets(names: Sequence[str], rows: Mapping[str, int]) -> None:
    """Whether a dataset of so many `rows` by kind can be of the targets of these names; nothing
    heavy is loaded. Raises `DatasetError`, `UnknownName`, or an error of a target's kind."""
    for name in names:
        kind = kind_of(name)[0].name
        if kind not in rows:
            raise DatasetError(
                f"{name} is a target of kind {kind}, of which a build cannot make rows again; name "
                f"targets of kind {' or '.join(rows)}"
            )
        if rows[kind] < 1:
            option = "--rows" if kind in SIMULATED else "--cpu-rows"
            raise DatasetError(f"{name} gets no rows; give {option} 1 or more, or leave it out")
        check_target(name)


def named(names: Sequence[str], kind: str) -> Found:
    """Those of a kind among the targets of these names, in this order. Raises `DatasetError` for
    one that is named twice, and as `targets.registry.make_target`."""
    found: Found = []
    for name, target in _made(names, kind):
        specification = specification_of(target)
        if specification is None:
            raise DatasetError(f"{name} has no specification to build it again by; name another")
        each = _known(kind, specification)
        if twin := next((other for other, _ in found if other.id == each[0].id), None):
            raise DatasetError(f"{name} is the same hardware as {twin.name}; name it once")
        found.append(each)
    return found


def check_unchanged(names: Sequence[str], hardware: Sequence[DatasetHardware]) -> None:
    """Raises `DatasetError` where a name stands for something else than when `hardware` was
    planned by it, and what `named` does."""
    known = {each.id for each in hardware}
    for kind in (*SIMULATED, MEASURED):
        for name, target in _made(names, kind):
            if target.fingerprint not in known:
                raise DatasetError(
                    f"{name} no longer is what it was when this build began; build again into "
                    "another folder"
                )


def _made(names: Sequence[str], kind: str) -> Iterator[tuple[str, Target]]:
    for name in names:
        maker, rest = kind_of(name)
        if maker.name == kind:
            yield name, maker.make(rest, _SPACES[kind])


def drawn(kind: str, count: int, seed: int) -> Found:
    """Different pieces of hardware of a kind; none where this machine cannot measure it."""
    try:
        if kind == MEASURED:
            check_target(kind)  # there may be no compiler
        specifications = target_kinds()[kind].variants(count, seed)
    except TilewrightError:
        return []
    return [_known(kind, specification) for specification in specifications]


def _known(kind: str, specification: Mapping[str, Json]) -> tuple[DatasetHardware, Target]:
    """The hardware that is built again by a specification, as every part of a build does."""
    target = rebuild(kind, specification, _SPACES[kind])
    said = specification_of(target)
    assert said is not None
    return DatasetHardware(
        target.fingerprint, kind, target.name, target.hardware_features(),
        dict(said), _SPACES[kind],
    ), target  # fmt: skip
