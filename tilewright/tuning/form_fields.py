"""Defines the fields of forms that take a name or a path: a server checks what is given against the
names there are, before any worker runs.

A path, or a kind of target with something behind a colon, passes: only the worker has its files.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field

from tilewright.core.errors import TilewrightError

_PATH = r".*[./].*"
"""What is taken for a file rather than a name."""


def _targets(schema: dict[str, Any]) -> None:
    from tilewright.targets.registry import target_kinds

    with suppress(TilewrightError):  # a package's that does not load: said when it is asked for
        kinds = target_kinds()
        presets = [name for kind in kinds.values() for name in kind.presets()]
        schema["pattern"] = _one_of([*presets, *kinds], *(f"{name}:.+" for name in kinds), _PATH)


def _networks(schema: dict[str, Any]) -> None:
    from tilewright.networks import zoo_names

    schema["pattern"] = _one_of(zoo_names(), _PATH)


def _network_or_none(schema: dict[str, Any]) -> None:
    from tilewright.networks import zoo_names

    schema["pattern"] = _one_of(["", *zoo_names()], _PATH)


def _tuners(schema: dict[str, Any]) -> None:
    from tilewright.search.registry import registered_tuners

    with suppress(TilewrightError):
        schema["pattern"] = _one_of(
            [], *(rf"{name.replace('+', '[+]')}(:.+)?" for name in registered_tuners())
        )


def _one_of(names: Iterable[str], *patterns: str) -> str:
    """A regular expression that Python and a browser read alike: names have no signs but dashes."""
    return f"^({'|'.join([*names, *patterns])})$"


TargetName = Annotated[str, Field(min_length=1, json_schema_extra=_targets)]
NetworkName = Annotated[str, Field(min_length=1, json_schema_extra=_networks)]
NetworkOrNone = Annotated[str, Field(json_schema_extra=_network_or_none)]
TunerText = Annotated[str, Field(min_length=1, json_schema_extra=_tuners)]
"""A tuner, with options behind colons."""
