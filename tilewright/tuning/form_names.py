"""Lists the names that a form takes: as choices, or as a pattern for fields that take paths, too.

Loaded when a form's schema is made: it loads all targets and tuners there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tilewright.core.errors import TilewrightError
from tilewright.networks import zoo_names
from tilewright.search.registry import registered_tuners
from tilewright.targets.registry import target_kinds

_PATH = r".*[./].*"
"""What is taken for a file rather than a name."""


def add_names(kind: str, schema: dict[str, Any]) -> None:
    """Add to the schema of a field what it takes; nothing where a package that brings some does
    not load: that is said when it is asked for."""
    with suppress(TilewrightError):
        if kind == "tuner":
            schema["enum"] = list(registered_tuners())
        else:
            schema["pattern"] = _PATTERNS[kind]()


def _targets() -> str:
    kinds = target_kinds()
    presets = [name for kind in kinds.values() for name in kind.presets()]
    return _one_of([*presets, *kinds], *(f"{name}:.+" for name in kinds), _PATH)


def _tuner_configs() -> str:
    names = [name.replace("+", "[+]") for name in registered_tuners()]
    return _one_of([], *(f"{name}(:.+)?" for name in names))


def _one_of(names: Iterable[str], *patterns: str) -> str:
    """A regular expression that Python and a browser read alike: names have no signs but dashes."""
    return f"^({'|'.join([*names, *patterns])})$"


_PATTERNS = {
    "target": _targets,
    "network": lambda: _one_of(zoo_names(), _PATH),
    "network or none": lambda: _one_of(["", *zoo_names()], _PATH),
    "tuner with options": _tuner_configs,
}
