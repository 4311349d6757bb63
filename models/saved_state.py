"""Saves and loads a tuner's state: models in native formats, arrays as NPZ, and an index.

The index contains a digest of each file. No pickle is written or read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.core.errors import TilewrightError
from tilewright.core.files import unpack_arrays
from tilewright.core.formats import TUNER_STATE
from tilewright.models.model_registry import load_model
from tilewright.search.cost_model_protocols import CostModel
from tilewright.search.explorer import ExplorerState

INDEX = "state.json"
_ARRAYS = "arrays.npz"


class StoreError(TilewrightError):
    """The saved state is missing, damaged or of an unsupported version."""


def save_state(state: ExplorerState, folder: Path) -> list[Path]:
    """Write all models and arrays of a tuner's state to a folder.

    Args:
        state: fitted models and arrays that the tuner carries from round to round.
        folder: folder to write to; it is created if necessary.

    Returns:
        Paths of the written files; the index is the last one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries, files = {}, []
    for role, model in sorted(state.models.items()):
        path = folder / f"{role}{model.suffix}"
        model.save(path)
        entries[role] = {
            "kind": model.kind,
            "classify": bool(getattr(model, "classify", False)),
            "columns": list(model.columns),
            "file": path.name,
            "sha256": _digest(path),
        }
        files.append(path)
    arrays = folder / _ARRAYS
    np.savez(arrays, allow_pickle=False, **state.arrays)
    index = folder / INDEX
    about = {
        "version": TUNER_STATE.written,
        "models": entries,
        "arrays": {"file": _ARRAYS, "sha256": _digest(arrays)},
    }
    index.write_text(json.dumps(about))
    return [*files, arrays, index]


def load_state(folder: Path) -> ExplorerState:
    """Load the state that `save_state` wrote to a folder.

    Args:
        folder: folder to read from.

    Raises:
        StoreError: the state has an unsupported version, or a file is missing or has changed.
    """
    try:
        index = json.loads((folder / INDEX).read_text())
        if refusal := TUNER_STATE.refusal(folder / INDEX, TUNER_STATE.version_in(index)):
            raise StoreError(refusal)
        models = {role: _load(folder, entry) for role, entry in index["models"].items()}
        path = _checked_path(folder, index["arrays"]["file"], index["arrays"]["sha256"])
        return ExplorerState(models, unpack_arrays(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(
            f"{folder} contains no usable models ({error}); train again, or remove the folder"
        ) from None


def _load(folder: Path, entry: dict[str, Any]) -> CostModel:
    path = _checked_path(folder, entry["file"], entry["sha256"])
    columns = [str(name) for name in entry["columns"]]
    return load_model(str(entry["kind"]), bool(entry["classify"]), columns, path)


def _checked_path(folder: Path, name: str, digest: str) -> Path:
    path = folder / Path(name).name
    if _digest(path) != digest:
        raise StoreError(f"{path} was changed after it was saved; train again, or restore the file")
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
