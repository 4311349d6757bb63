"""Reads what a tuned folder says is fused: `fusion.json`."""

from __future__ import annotations

from pathlib import Path

from tilewright.core import formats
from tilewright.core.files import as_list, as_object, as_text, read_json_file
from tilewright.tuning.output_dir import FUSION
from tilewright.tuning.schedule_lookup import PickError


def labels_of(folder: Path) -> dict[str, bool] | None:
    """Whether each thing that may be fused is, by its name, where a tuned folder says so; None
    where it does not. Raises `PickError` for a file of another version, and for one that holds no
    such labels."""
    path = folder / FUSION
    try:
        found = as_object(read_json_file(path))
        if refusal := formats.FUSION.refusal(path, formats.FUSION.version_in(found)):
            raise PickError(refusal)
        rows = [as_object(each) for each in as_list(found["labels"])]
        labels = {as_text(row["name"]): row["fused"] for row in rows}
        if not all(isinstance(label, bool) for label in labels.values()):
            raise ValueError("a label is not true or false")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PickError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError):
        raise PickError(
            f"{path} does not say what is fused; tune again with 'tilewright tune --fusion'"
        ) from None
    return {name: label is True for name, label in labels.items()}
