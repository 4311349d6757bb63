"""Reader for the JSON files of a finished run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from tilewright.core import formats
from tilewright.core.errors import TilewrightError
from tilewright.core.files import MAX_JSON_BYTES, Json, as_object, read_json, read_plain
from tilewright.tuning.output_dir import SCHEDULES, SUMMARY

M = TypeVar("M", bound=BaseModel)
_WRITTEN = {SUMMARY: formats.SUMMARY, SCHEDULES: formats.SCHEDULES}
_RENAMED = {
    1: {
        "default_cycles": "rule_cycles", "default_seconds": "rule_seconds",
        "default_source": "rule_source", "afresh": "validation",
    },
    2: {
        "baseline_cycles": "rule_cycles", "baseline_seconds": "rule_seconds",
        "baseline_source": "rule_source",
    },
}  # fmt: skip
"""Present names of keys that summaries of earlier versions name differently, by version and earlier
name. Entries of version 1 also lack `names` and `epilogue`."""


class _Head(BaseModel):
    """Version of a file. Files of old versions may not contain it."""

    version: JsonValue = None


def read_written(model: type[M], folder: Path, name: str, problem: type[TilewrightError]) -> M:
    """Read a JSON file of a finished run, after converting it to the present version.

    Args:
        model: pydantic model of the fields to read.
        folder: output directory of the run.
        name: name of the file.
        problem: exception class to raise.

    Returns:
        An instance of `model`.

    Raises:
        TilewrightError: the file is missing, damaged or has an unsupported version. The exception
            is an instance of `problem`.
    """
    try:
        data = read_plain(folder / name, limit=MAX_JSON_BYTES)
        head = _Head.model_validate_json(data)
        written = _WRITTEN[name]
        version = written.unmarked if "version" not in head.model_fields_set else head.version
        if refusal := written.refusal(folder / name, version):
            raise problem(refusal)
        if written is formats.SUMMARY and isinstance(version, int) and version in _RENAMED:
            data = _present_summary(data, _RENAMED[version])
        return model.model_validate_json(data)
    except FileNotFoundError:
        raise problem(
            f"{folder} contains no finished run, because the file {name} is missing; give the "
            "output directory of 'tilewright tune'"
        ) from None
    except OSError as error:
        raise problem(f"cannot read {folder / name}: {error}; tune again") from None
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise problem(f"cannot read {folder / name}: {first['msg']}; tune again") from None
        where = ".".join(map(str, first["loc"]))
        why = f"{name}: {where} {first['msg'].lower()}".strip()
        raise problem(unreadable_message(folder, why)) from None


def _present_summary(data: bytes, renamed: Mapping[str, str]) -> bytes:
    """Convert a summary of an earlier version to the keys of the present version.

    Args:
        data: contents of the file.
        renamed: present names of keys, by earlier name.

    Returns:
        Contents in the present version; `data` itself if it is not valid JSON.
    """
    try:
        summary = as_object(read_json(data))
        total, rows = summary.get("total"), summary.get("workloads")
        if isinstance(total, dict):
            total = _with_keys(total, renamed)
            if isinstance(published := total.get("published"), dict):
                total["published"] = _with_keys(published, renamed)
        if isinstance(rows, list):
            rows = [_with_keys(row, renamed) if isinstance(row, dict) else row for row in rows]
    except ValueError:
        return data  # the caller's model reports the error when it parses the data
    return json.dumps({**summary, "total": total, "workloads": rows}).encode()


def _with_keys(row: Mapping[str, Json], renamed: Mapping[str, str]) -> dict[str, Json]:
    return {renamed.get(key, key): value for key, value in row.items()}


def unreadable_message(folder: Path, why: object) -> str:
    """Return the error message for a folder that this version cannot read.

    Args:
        folder: the folder.
        why: description of the problem with its files.
    """
    return f"{folder} was not written by this version of 'tilewright tune' ({why}); tune again"
