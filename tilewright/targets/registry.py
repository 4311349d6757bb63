"""Registry of target kinds: lists the available targets and builds a target from its name.

Examples of names:

    vta-pynq          a preset of a target kind
    my_vta.json       a file that a target kind can read
    replay:C4.csv.gz  the name of a target kind and an argument for it
    roofline          the name of a target kind that needs no argument

A target kind is registered by a line in `BUILT_IN`, or by an entry point of the group
`tilewright.targets` that refers to a `TargetKind`.
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
"""Import paths of the target kinds that this package provides, by the name of the kind."""
ENTRY_POINTS = "tilewright.targets"


class TargetError(TilewrightError):
    """Raised if a target cannot be built, for example because its plug-in fails to load."""


@dataclass(frozen=True)
class Property:
    """A property of a target that is shown to users, for example its clock frequency.

    Attributes:
        section: heading under which the property is listed.
        name: name of the property.
        value: its value; None if it is unknown.
        unit: unit of the value.
        meaning: explanation of the property.
    """

    section: str
    name: str
    value: int | float | str | None
    unit: str
    meaning: str


def _cannot_rebuild(specification: Mapping[str, Json], space: str) -> Target:
    raise TargetError(
        "targets of this kind cannot be restored from the specification that a run stores"
    )


@dataclass(frozen=True)
class TargetKind:
    """A family of targets, such as `vta` or `cpu`: how they are named, described and built.

    Functions that take `text` receive a preset, a file path, or the part of a target's name after
    `kind:`. The functions `check`, `describe`, `remarks`, `properties` and `check_code` do not load
    heavy modules.

    Attributes:
        name: name of the kind.
        summary: one line for lists of targets.
        make: builds a target from `text` and the name of a space, which is "" if the kind has no
            spaces.
        spaces: names of the schedule spaces; the first one is the default.
        presets: returns the names of the presets.
        reads: returns whether the kind can read a file.
        check: given `text`, raises the errors that `make` would raise.
        describe: given a preset, returns its row in a table of presets, by column name.
        remarks: given `text`, returns sentences that a user should read before using the target.
        properties: given `text`, returns all properties of the target.
        rebuild: builds a target from its `HasSpecification.specification` and the name of a space.
        check_code: given a specification, raises an error if code that was compiled for the target
            cannot run on this machine. None for kinds that do not compile kernels or have no such
            check.
        variants: given a maximum count and a seed, returns specifications of different pieces of
            hardware of this kind, for training models on several machines. Presets are not among
            them.
        warm_up: compiles everything that the first run would otherwise compile. Its argument is
            called with progress lines.
        with_run_limit: for kinds whose targets run programs in a child process of their own:
            returns the same target with a time limit, in seconds, for running one program.
        make_on: for targets that workers of a cluster offer: builds a target from `text`, the name
            of a space and the address of the cluster. The `make` of such a kind only raises an
            error that asks for the address.
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
        """Return the name of a space, with the kind's default space as the default.

        Args:
            space: name of a space; empty for the default space.

        Returns:
            The name; "" if the kind has no spaces.

        Raises:
            UnknownName: the kind does not have the space.
        """
        if not space:
            return self.spaces[0] if self.spaces else ""
        if space not in self.spaces:
            raise UnknownName("space", space, list(self.spaces))
        return space


@cache
def target_kinds() -> dict[str, TargetKind]:
    """Return all target kinds by name, built-in kinds first.

    Raises:
        TargetError: an entry point cannot be loaded, or its name is already taken.
    """
    kinds = {name: _built_in(name) for name in BUILT_IN}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            kind = entry.load()
        except Exception as error:
            raise TargetError(
                f"the target '{entry.name}' ({entry.value}) cannot be loaded: {error!r}; "
                "repair or uninstall the package that provides it"
            ) from error
        if not isinstance(kind, TargetKind) or kind.name in kinds:
            raise TargetError(
                f"the entry point '{entry.name}' ({entry.value}) is not a new TargetKind; "
                "repair or uninstall the package that provides it"
            )
        kinds[kind.name] = kind
    return kinds


def _built_in(name: str) -> TargetKind:
    module, _, attribute = BUILT_IN[name].partition(":")
    kind: TargetKind = getattr(importlib.import_module(module), attribute)
    return kind


def kind_of(text: str) -> tuple[TargetKind, str]:
    """Find the target kind that a target's name refers to.

    Args:
        text: name of the target: a preset, a file path, `kind:argument`, or the name of a kind
            alone.

    Returns:
        The target kind, and the part of the name that the kind interprets. This part is "" for the
        name of a kind alone.

    Raises:
        UnknownName: no target kind knows the name.
    """
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
    names = [name for kind in kinds.values() for name in (*kind.presets(), kind.name)]
    raise UnknownName("target", text, names)


def make_target(text: str, space: str = "") -> Target:
    """Build the target with the given name.

    Args:
        text: name of the target: a preset, a file path or `kind:argument`.
        space: name of the schedule space; the default space of the target kind if empty.

    Raises:
        UnknownName: the name of the target or of the space is unknown.
        TilewrightError: the target cannot be built. The class of the error depends on the kind.
    """
    kind, rest = kind_of(text)
    return kind.make(rest, kind.space_named(space))


def check_target(text: str, space: str = "") -> None:
    """Check the name of a target and of its schedule space, without loading heavy modules.

    Args:
        text: name of the target, as for `make_target`.
        space: name of the schedule space; empty for the target's default space.

    Raises:
        TilewrightError: `make_target` would reject the names with the same error.
    """
    kind, rest = kind_of(text)
    kind.space_named(space)
    kind.check(rest)


def target_remarks(text: str) -> Sequence[str]:
    """Return sentences that a user should read before using a target.

    Args:
        text: name of the target, as for `make_target`.

    Raises:
        UnknownName: the target is unknown.
    """
    kind, rest = kind_of(text)
    return kind.remarks(rest)


def rebuild(kind: str, specification: Mapping[str, Json], space: str) -> Target:
    """Build a target from the JSON that a run stored about it.

    If the kind is a built-in one, other kinds are not loaded.

    Args:
        kind: name of the target kind.
        specification: JSON description from `HasSpecification`.
        space: name of the schedule space.

    Raises:
        UnknownName: the kind is unknown.
        TargetError: targets of this kind cannot be rebuilt, or the kind cannot be loaded.
    """
    return kind_named(kind).rebuild(specification, space)


def check_code(kind: str, specification: Mapping[str, Json]) -> None:
    """Check that code that was compiled for a target can run on this machine.

    If the target kind defines no `check_code`, the target is built, and must be able to compile
    kernels.

    Args:
        kind: name of the target kind.
        specification: JSON description of the target.

    Raises:
        TargetError: the target does not compile kernels.
        TilewrightError: the code cannot run on this machine, or the target cannot be built.
    """
    target_kind = kind_named(kind)
    if target_kind.check_code is not None:
        target_kind.check_code(specification)
    elif capability(target := target_kind.rebuild(specification, ""), CompilesKernels) is None:
        raise TargetError(
            f"{target.name} cannot compile kernels into libraries; choose the target cpu"
        )


def kind_named(kind: str) -> TargetKind:
    """Return the target kind with the given name.

    If it is a built-in kind, other kinds are not loaded.

    Args:
        kind: name of the target kind.

    Raises:
        UnknownName: there is no such kind.
        TargetError: a plug-in cannot be loaded.
    """
    if kind in BUILT_IN:
        return _built_in(kind)
    kinds = target_kinds()
    if kind not in kinds:
        raise UnknownName("kind of target", kind, list(kinds))
    return kinds[kind]
