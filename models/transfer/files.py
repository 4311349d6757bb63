"""Writes and reads the folder of a transfer model: a JSON index with digests, and native files.

The index `model.json` contains the model's kind, options and columns, and the SHA-256 digest of
each of its files. It can only select code of registered kinds of models.

XGBoost and LightGBM trust their files, and a crafted file can execute code. A model is therefore
loaded only if its signature, `model.signature`, proves that it was trained in this workspace, or if
the user has declared it trusted (`trust_model`). The signature covers the index and thereby the
digests of all files.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tilewright.core.errors import TilewrightError
from tilewright.core.files import (
    as_object,
    canonical,
    digest,
    read_json,
    read_plain,
    write_atomically,
)
from tilewright.core.formats import MODEL
from tilewright.core.signing import SigningError, is_own, sign
from tilewright.models.transfer.contract import TransferError

INDEX = "model.json"
SIGNATURE = "model.signature"
_PURPOSE = "tilewright transferred model, version 1"
MAX_COLUMNS = 20_000
MAX_BYTES = 1 << 29
"""Maximum number of bytes of a model's file. Larger files are rejected."""
_SIGNATURE_BYTES = 4096

Name = Annotated[str, Field(max_length=300)]


class Index(BaseModel):
    """Contents of the index file of a transfer model, `model.json`.

    Attributes:
        format: version of the format.
        kind: name of the kind of model.
        seed: seed with which the model was trained.
        options: option values by name.
        columns: names of the input columns.
        spread: typical errors with and without compilation results, in log2 latency.
        facts: further properties of the model by name.
        files: SHA-256 digests of the model's files, by file name.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    format: int = MODEL.written
    kind: Annotated[str, Field(max_length=100)]
    seed: Annotated[int, Field(ge=0)]
    options: dict[str, int | float | bool | str]
    columns: Annotated[list[Name], Field(max_length=MAX_COLUMNS)]
    spread: Annotated[list[float], Field(min_length=2, max_length=2)]
    facts: dict[str, int | float | bool | str]
    files: dict[Name, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]


def write_model(folder: Path, index: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write the files of a model and the index with their digests, and sign the model.

    If the key of the workspace cannot be created or read, the model is written without a signature.

    Args:
        folder: folder of the model.
        index: fields of `Index` except `files`.
        files: contents of the files by name.

    Raises:
        OSError: a file cannot be written.
    """
    whole = Index.model_validate(
        {**index, "files": {name: digest(data) for name, data in files.items()}}
    )
    for name, data in files.items():
        write_atomically(folder / name, data)
    write_atomically(folder / INDEX, canonical(whole.model_dump()) + b"\n")
    with suppress(SigningError):
        trust_model(folder)


def trust_model(folder: Path) -> None:
    """Sign the model in a folder in its present state, so that it can be loaded in this workspace.

    Use this function only for a model whose author you trust, because loading the model can execute
    code.

    Args:
        folder: folder of the model.

    Raises:
        TransferError: the folder contains no usable model.
        SigningError: the workspace's key cannot be used.
        OSError: the signature cannot be written.
    """
    signature = sign(_PURPOSE, _identity(read_index(folder)))
    write_atomically(folder / SIGNATURE, signature.encode() + b"\n")


def check_trusted(folder: Path, index: Index) -> None:
    """Check that a model was trained in this workspace or that its user has declared it trusted.

    Args:
        folder: folder of the model.
        index: its index, as `read_index` returned it.

    Raises:
        TransferError: the model is neither signed by this workspace nor declared trusted.
    """
    try:
        signature = read_plain(folder / SIGNATURE, limit=_SIGNATURE_BYTES).decode().strip()
        if is_own(_PURPOSE, _identity(index), signature):
            return
        why = "its signature was not made in your workspace"
    except FileNotFoundError:
        why = "it has no signature"
    except (OSError, ValueError, TilewrightError) as error:
        why = f"its signature cannot be checked: {error}"
    raise TransferError(
        f"{folder} contains a model that was trained elsewhere or changed afterwards "
        f"({why}), and loading it can run code with your user's rights. If you trust the "
        f"person who made it: tilewright model trust {folder}"
    )


def read_index(folder: Path) -> Index:
    """Read the index of a model, `model.json`.

    Args:
        folder: folder of the model.

    Raises:
        TransferError: the file is missing, invalid or of an unsupported version.
    """
    try:
        data = read_plain(folder / INDEX, limit=MAX_BYTES)
        version = MODEL.version_in(as_object(read_json(data)))
        if refusal := MODEL.refusal(folder / INDEX, version):
            raise TransferError(refusal)
        index = Index.model_validate_json(data)
        if len(set(index.columns)) != len(index.columns):
            raise ValueError("two of its columns have the same name")
    except TransferError:
        raise
    except (OSError, ValueError, RecursionError, TilewrightError) as error:
        raise no_model(folder, error) from None
    return index


def identity_of(folder: Path) -> str:
    """Return a short ID of a saved model: a digest of its index, which covers all its files.

    Args:
        folder: folder of the model.

    Raises:
        TransferError: the folder contains no usable model.
    """
    return _identity(read_index(folder))[:16]


def _identity(index: Index) -> str:
    return digest(canonical(index.model_dump()))


def read_files(folder: Path, index: Index, names: tuple[str, ...]) -> dict[str, bytes]:
    """Read the files of a model and check their digests.

    Args:
        folder: folder of the model.
        index: its index.
        names: names of the files that a model of this kind has.

    Returns:
        Contents of the files by name.

    Raises:
        TransferError: a file is missing or has changed, or the names differ from those in the
            index.
    """
    if tuple(sorted(index.files)) != tuple(sorted(names)):
        raise no_model(folder, f"a model of kind {index.kind} has the files {', '.join(names)}")
    try:
        contents = {name: read_plain(folder / name, limit=MAX_BYTES) for name in names}
    except (OSError, TilewrightError) as error:
        raise no_model(folder, error) from None
    for name, data in contents.items():
        if digest(data) != index.files[name]:
            raise no_model(folder, f"{name} was changed after it was saved")
    return contents


def no_model(folder: Path, why: object) -> TransferError:
    """Build an error that tells the user what to do about a folder without a usable model.

    Args:
        folder: the folder.
        why: description of the problem.
    """
    if isinstance(why, ValidationError):
        first = why.errors()[0]
        why = f"{INDEX}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    said = " ".join(str(why).split())[:200]
    return TransferError(
        f"{folder} contains no usable model ({said}); train one: tilewright model train "
        f"--out {folder}"
    )
