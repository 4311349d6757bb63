"""Hardware: the contract a target keeps, and the targets that keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from targets.compiled_cache import use_cache_of_these_sources

if TYPE_CHECKING:
    from targets.vta.lowering.batch import SpaceName
    from targets.vta.target import VtaTarget

use_cache_of_these_sources()


def make_target(name_or_path: str, space: SpaceName = "extended", stock: bool = False) -> VtaTarget:
    """A VTA preset by name or a specification file by path, with one of its schedule spaces.

    Raises `SpecError` or `UnknownName`.
    """
    from targets.vta.spec import VtaSpec
    from targets.vta.target import VtaTarget

    return VtaTarget(VtaSpec.load(name_or_path), space, stock)
