"""Lists the targets there are, and makes each from its name.

    vta-pynq          a preset of a kind
    my_vta.json       a file that a kind reads
    replay:C4.csv.gz  a kind, and what it makes of the rest
    roofline          a kind that needs nothing more

A kind is registered by a line in `BUILT_IN`, or by an entry point of the group `tilewright.targets`
that names a `TargetKind`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from tilewright.core.errors import TilewrightError, UnknownName
from tilewright.core.files import Json
from tilewright.targets.base import Target
from tilewright.targets.capabilities import CompilesKernels, capability

BUILT_IN = {
    "vta": "tilewright.targets.vta.factory:KIND",
    "replay": "tilewright.targets.vta.factory:REPLAY_KIND",
    "gemmini": "tilewright.targets.gemmini.factory:KIND",
    "cpu": "tilewright.targets.cpu.factory:KIND",
    "board": "tilewright.targets.board.factory:KIND",
}
"""Where each kind of this package is, by its name."""
ENTRY_POINTS = "tilewright.targets"


class TargetError(TilewrightError):
    """A target that cannot be made: a plug-in that does not load, or a space it does not have."""


@dataclass(frozen=True)
class Property:
    """Something to know about a target; `section` is the heading it belongs below."""

    section: str
    name: str
    value: int | float | str | None
    unit: str
    meaning: str


def _cannot_rebuild(specification: Mapping[str, Json], space: str) -> Target:
    raise TargetError("targets of this kind cannot be built from what a run has written down")


@dataclass(frozen=True)
class TargetKind:
    """How targets of one kind are named and made.

    `make(text, space)` takes a preset, a file's path or what follows `name:`, and one of `spaces`
    ("" if there are none). `check(text)` raises what `make` would, quickly and without loading
    anything heavy; as quick are `remarks(text)`, what a person should know before such a target is
    used, `properties(text)`, all there is to know about it, and `describe(preset)`, the figures
    that tell presets apart, by the name of their column. `rebuild(specification, space)` makes a
    target from what `HasSpecification` gave; of a kind whose targets compile
    kernels, `check_code(specification)` raises what that would where their code cannot run here, as
    quick as `check`. `variants(count, seed)` are
    what `rebuild` takes of at most so many different pieces of hardware of this kind, for models
    that shall know more than one; none of them is a preset. `warm_up(report)` compiles what would
    otherwise be compiled by the first run, and calls `report` with lines of progress.
    `with_run_limit(target, seconds)` is of a kind whose targets run programs in a watched process
    of their own, so that no program can end, block or mislead a session. It returns the same target
    with that limit on the run of a program; `targets.subprocess_target` is not needed for it.
    `make_on(text, space, cluster)` is of a kind whose targets the workers of a cluster offer, at
    their addresses: its `make` only says that these have to be named.
    """

    name: str
    summary: str
    make: Callable[[str, str], Target]
    spaces: tuple[str, ...] = ()
    presets: Callable[[], Sequence[str]] = tuple
    reads: Callable[[Path], bool] = lambda path: False
    check: Callable[[str], None] = lambda text: None
    describe: Callable[[str], Mapping[str, str]] = lambda preset: {}
    remarks: Callable[[str], Sequence[str]] = lambda text: ()
    properties: Callable[[str], Sequence[Property]] = lambda text: ()
    rebuild: Callable[[Mapping[str, Json], str], Target] = _cannot_rebuild
    check_code: Callable[[Mapping[str, Json]], None] | None = None
    variants: Callable[[int, int], Sequence[Mapping[str, Json]]] = lambda count, seed: ()
    warm_up: Callable[[Callable[[str], None]], None] = lambda report: None
    with_run_limit: Callable[[Target, float], Target] | None = None
    make_on: Callable[[str, str, str], Target] | None = None

    def space_named(self, space: str) -> str:
        """`space` if this kind has it, its first if none is named. Raises `UnknownName`."""
        if not space:
            return self.spaces[0] if self.spaces else ""
        if space not in self.spaces:
            raise UnknownName("space", space, list(self.spaces))
        return space


@cache
def target_kinds() -> dict[str, TargetKind]:
    """All kinds by name, built-in ones first. Raises `TargetError` for an entry point that cannot
    be loaded or takes a name that is taken."""
    kinds = {name: _built_in(name) for name in BUILT_IN}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            found = entry.load()
        except Exception as error:
            raise TargetError(
                f"the target '{entry.name}' ({entry.value}) cannot be loaded: {error!r}; repair or "
                "uninstall the package that brings it"
            ) from error
        if not isinstance(found, TargetKind) or found.name in kinds:
            raise TargetError(
                f"the entry point '{entry.name}' ({entry.value}) names no new TargetKind; repair "
                "or uninstall the package that brings it"
            )
        kinds[found.name] = found
    return kinds


def _built_in(name: str) -> TargetKind:
    module, _, attribute = BUILT_IN[name].partition(":")
    kind: TargetKind = getattr(importlib.import_module(module), attribute)
    return kind


def kind_of(text: str) -> tuple[TargetKind, str]:
    """The kind that a target's name belongs to, and what that kind makes of it. Raises
    `UnknownName`."""
    kinds = target_kinds()
    head, colon, rest = text.partition(":")
    if colon and head in kinds:
        return kinds[head], rest
    for kind in kinds.values():
        if text in kind.presets():
            return kind, text
    if text in kinds:
        return kinds[text], ""
    path = Path(text)
    for kind in kinds.values():
        if kind.reads(path):
            return kind, text
    known = [name for kind in kinds.values() for name in (*kind.presets(), kind.name)]
    raise UnknownName("target", text, known)


def make_target(text: str, space: str = "") -> Target:
    """The target of that name, with the space of that name or its usual one. Raises a
    `TilewrightError` of the target's kind, or `UnknownName`."""
    kind, rest = kind_of(text)
    return kind.make(rest, kind.space_named(space))


def check_target(text: str, space: str = "") -> None:
    """Raises what `make_target` would, without loading anything heavy."""
    kind, rest = kind_of(text)
    kind.space_named(space)
    kind.check(rest)


def target_remarks(text: str) -> Sequence[str]:
    """What a person should know before the target is used. Raises as `check_target`."""
    kind, rest = kind_of(text)
    return kind.remarks(rest)


def rebuild(kind: str, specification: Mapping[str, Json], space: str) -> Target:
    """A target from what a run wrote down about it, without loading other kinds than its own.
    Raises `UnknownName`, `TargetError`, or an error of its kind."""
    return kind_named(kind).rebuild(specification, space)


def check_code(kind: str, specification: Mapping[str, Json]) -> None:
    """Raises what `rebuild` would for a machine that is not here, without loading anything heavy if
    the kind can tell, and `TargetError` for a target that compiles no kernels."""
    found = kind_named(kind)
    if found.check_code is not None:
        found.check_code(specification)
    elif capability(target := found.rebuild(specification, ""), CompilesKernels) is None:
        raise TargetError(f"{target.name} compiles no kernels into libraries; choose cpu")


def kind_named(kind: str) -> TargetKind:
    """Return the kind of that name, without loading the other kinds if it is a built-in one. Raises
    `UnknownName`."""
    if kind in BUILT_IN:
        return _built_in(kind)
    kinds = target_kinds()
    if kind not in kinds:
        raise UnknownName("kind of target", kind, list(kinds))
    return kinds[kind]
