"""Reads what a finished run left in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tilewright.core.errors import TilewrightError
from tilewright.core.files import MAX_JSON_BYTES
from tilewright.core.safe_files import read_plain

M = TypeVar("M", bound=BaseModel)


def read_written(model: type[M], folder: Path, name: str, problem: type[TilewrightError]) -> M:
    """A file that `tilewright tune` wrote in JSON. Raises `problem` where it is missing, damaged or
    of another kind."""
    try:
        return model.model_validate_json(read_plain(folder / name, limit=MAX_JSON_BYTES))
    except FileNotFoundError:
        raise problem(
            f"{folder} holds no finished run: there is no {name}; give the --out folder of "
            "'tilewright tune'"
        ) from None
    except OSError as error:
        raise problem(f"cannot read {folder / name}: {error}; tune again") from None
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise problem(f"cannot read {folder / name}: {first['msg']}; tune again") from None
        where = ".".join(map(str, first["loc"]))
        why = f"{name}: {where} {first['msg'].lower()}".strip()
        raise problem(foreign(folder, why)) from None


def foreign(folder: Path, why: object) -> str:
    """The sentence for a folder in another form than runs have."""
    return f"{folder} was not written by this version of 'tilewright tune' ({why}); tune again"
