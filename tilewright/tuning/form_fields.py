"""Defines the fields of forms that take a name or a path: a server checks what is given against the
names there are, before any worker runs.

A path, or a kind of target with something behind a colon, passes: only the worker has its files.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import Field


def _with_names(kind: str, schema: dict[str, Any]) -> None:
    from tilewright.tuning.form_names import add_names

    add_names(kind, schema)


TargetName = Annotated[str, Field(min_length=1, json_schema_extra=partial(_with_names, "target"))]
NetworkName = Annotated[str, Field(min_length=1, json_schema_extra=partial(_with_names, "network"))]
NetworkOrNone = Annotated[str, Field(json_schema_extra=partial(_with_names, "network or none"))]
TunerName = Annotated[str, Field(min_length=1, json_schema_extra=partial(_with_names, "tuner"))]
TunerText = Annotated[
    str, Field(min_length=1, json_schema_extra=partial(_with_names, "tuner with options"))
]
"""A tuner, with options behind colons."""
