"""Functions that add the accepted values of an option to the JSON schema of a form's field.

A form offers these values, and a server rejects all other values before a run begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

Schema = dict[str, Any]


def with_tuners(schema: Schema) -> None:
    """Restrict a field to the names of registered tuners.

    Args:
        schema: JSON schema of the field, changed in place.
    """
    from tilewright.search.registry import TunerError, registered_tuners

    with suppress(TunerError):  # a broken plug-in is reported when its tuner is requested
        schema["enum"] = list(registered_tuners())


def with_targets(schema: Schema) -> None:
    """Restrict a field to target presets, kinds of targets, texts such as `KIND:…`, and file paths.

    Args:
        schema: JSON schema of the field, changed in place.
    """
    from tilewright.targets.registry import TargetError, target_kinds

    with suppress(TargetError):
        kinds = target_kinds()
        presets = [name for kind in kinds.values() for name in kind.presets()]
        schema["pattern"] = _pattern([*presets, *kinds], [f"{kind}:" for kind in kinds])


def with_tuners_in_list(schema: Schema) -> None:
    """Restrict a list to names of tuners, each optionally followed by a colon and options.

    Args:
        schema: JSON schema of the list, changed in place.
    """
    from tilewright.search.registry import TunerError, registered_tuners

    with suppress(TunerError):
        names = registered_tuners()
        schema["items"]["pattern"] = _pattern(names, [f"{name}:" for name in names], paths=False)


def with_targets_in_list(schema: Schema) -> None:
    """Restrict a list to targets, as in `with_targets`.

    Args:
        schema: JSON schema of the list, changed in place.
    """
    with_targets(schema["items"])


def with_networks(schema: Schema) -> None:
    """Restrict a field to names of built-in networks, file paths and the empty string.

    Args:
        schema: JSON schema of the field, changed in place.
    """
    schema["pattern"] = _pattern(["", *_networks()], [])


def with_networks_in_list(schema: Schema) -> None:
    """Restrict a list to names of built-in networks and file paths.

    Args:
        schema: JSON schema of the list, changed in place.
    """
    schema["items"]["pattern"] = _pattern(_networks(), [])


def _networks() -> list[str]:
    from tilewright.networks import zoo

    return list(zoo.names())


def _pattern(names: Iterable[str], beginnings: Iterable[str], paths: bool = True) -> str:
    """Build a regular expression that matches the accepted values of a form's field.

    Args:
        names: values that are accepted as they are.
        beginnings: prefixes of accepted values.
        paths: whether paths of files are accepted too.
    """
    begun = [f"{_plain(beginning)}.*" for beginning in beginnings] + [".*[./].*"] * paths
    return f"^({'|'.join([*map(_plain, names), *begun])})$"


def _plain(text: str) -> str:
    """Escape a string for a regular expression, but leave hyphens readable."""
    return re.escape(text).replace(r"\-", "-")
