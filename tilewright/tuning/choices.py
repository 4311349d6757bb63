"""Adds the accepted values to the schema of a form's field.

A form offers these values, and a server rejects all others before a run begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

Schema = dict[str, Any]


def with_tuners(schema: Schema) -> None:
    """Accept the names of tuners."""
    from tilewright.search.registry import TunerError, registered_tuners

    with suppress(TunerError):  # a package's that does not load: said when it is asked for
        schema["enum"] = list(registered_tuners())


def with_targets(schema: Schema) -> None:
    """Accept presets and kinds of targets, `KIND:…`, and paths of files."""
    from tilewright.targets.registry import TargetError, target_kinds

    with suppress(TargetError):
        kinds = target_kinds()
        presets = [name for kind in kinds.values() for name in kind.presets()]
        schema["pattern"] = _pattern([*presets, *kinds], [f"{kind}:" for kind in kinds])


def with_tuners_in_list(schema: Schema) -> None:
    """Accept lists of tuner names, each optionally followed by a colon and options."""
    from tilewright.search.registry import TunerError, registered_tuners

    with suppress(TunerError):
        names = registered_tuners()
        schema["items"]["pattern"] = _pattern(names, [f"{name}:" for name in names], paths=False)


def with_targets_in_list(schema: Schema) -> None:
    """Accept lists of targets."""
    with_targets(schema["items"])


def with_networks(schema: Schema) -> None:
    """Accept built-in networks, paths of files, and an empty text."""
    schema["pattern"] = _pattern(["", *_networks()], [])


def with_networks_in_list(schema: Schema) -> None:
    """Accept lists of built-in networks and paths of files."""
    schema["items"]["pattern"] = _pattern(_networks(), [])


def _networks() -> list[str]:
    from tilewright.networks import zoo

    return list(zoo.names())


def _pattern(names: Iterable[str], beginnings: Iterable[str], paths: bool = True) -> str:
    """Return a regular expression that matches the accepted texts of a form's field.

    Args:
        names: texts that are accepted as they are.
        beginnings: texts with which an accepted text may begin.
        paths: whether paths of files are accepted too.
    """
    begun = [f"{_plain(beginning)}.*" for beginning in beginnings] + [".*[./].*"] * paths
    return f"^({'|'.join([*map(_plain, names), *begun])})$"


def _plain(text: str) -> str:
    """Escape a text for a regular expression, but leave hyphens readable."""
    return re.escape(text).replace(r"\-", "-")
