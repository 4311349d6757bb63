"""Writes and reads the manifest and the files of an artifact, with digests and a signature.

The signature is made with a key of the user's own workspace. It allows the user's own artifacts to
run without `--allow-code`.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.core import signing
from tilewright.core.errors import TilewrightError
from tilewright.core.files import (
    MAX_JSON_BYTES,
    Json,
    as_int,
    as_object,
    as_text,
    canonical,
    digest,
    open_to_read,
    read_json,
    read_json_file,
    read_plain,
    remove,
    write_atomically,
)
from tilewright.core.formats import ARTIFACT
from tilewright.core.signing import SigningError
from tilewright.core.working_folder import workspace_root
from tilewright.networks.errors import BUILD_AGAIN, ArtifactError
from tilewright.targets.base import Target
from tilewright.targets.capabilities import specification_of

MANIFEST = "manifest.json"
FORMAT = "tilewright artifact"
FORMATS = (FORMAT, "tilewright artefact")
"""Accepted values of the key `format`. Version 0.1 wrote the second value."""
MOST_BYTES = 1 << 30
"""Maximum total size in bytes of the files of an artifact."""
_BLANK = "0" * 64
_IN_PROGRESS = re.compile(r"\.([A-Za-z0-9_][A-Za-z0-9_.-]{0,39})\.[0-9a-f]{16}\.tmp")
"""Matches names of temporary files that `core.files.write_atomically` creates. The group is the
name of the final file."""
_PLAIN = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}/){0,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""Matches valid names of files in an artifact. No valid name refers to a file outside of the
artifact's folder."""


def in_the_way(folder: Path) -> str | None:
    """Return the reason why an artifact cannot be written to a folder; None if it can."""
    if not folder.exists() and not folder.is_symlink():
        return None
    if not folder.is_dir():
        return "it is not a folder"
    if is_artifact(folder) or all(_IN_PROGRESS.fullmatch(path.name) for path in folder.iterdir()):
        return None
    return "it contains other files"


def is_artifact(folder: Path) -> bool:
    """Return whether a folder holds an artifact, even a damaged or an unfinished one."""
    try:
        result = as_object(read_json_file(folder / MANIFEST))
    except (OSError, ValueError, TilewrightError):
        return False
    return result.get("format") in FORMATS


def write_folder(
    folder: Path, files: Mapping[str, bytes], manifest: Mapping[str, Json]
) -> dict[str, Json]:
    """Write an artifact, and replace an earlier artifact in the same folder.

    A manifest that marks the artifact as unfinished is written first, and the final manifest last.
    If the build is stopped in between, the artifact is recognised as unfinished, and the next build
    can remove its files.

    Args:
        folder: folder of the artifact.
        files: content of each file, by name.
        manifest: the manifest without its list of files.

    Returns:
        The manifest with the list of files. If there is machine code, it also contains the
        signature, or the reason why there is none.

    Raises:
        ArtifactError: the folder contains something other than an artifact.
        OSError: a file cannot be written.
    """
    problem = in_the_way(folder)
    if problem:
        raise ArtifactError(
            f"cannot write to {folder}: {problem}; choose another folder with --out"
        )
    listed: dict[str, Json] = {
        name: {"bytes": len(data), "sha256": digest(data)} for name, data in sorted(files.items())
    }
    head: dict[str, Json] = {"format": FORMAT, "version": ARTIFACT.written}
    earlier = _files_of(folder)
    # If the build is stopped from here on, this manifest says that the artifact is unfinished, and
    # which files the next build may remove.
    begun = {**head, "unfinished": True, "files": listed, "earlier": earlier}
    for name in (MANIFEST, *listed):
        _path_of(folder, name)
    write_atomically(folder / MANIFEST, serialise_manifest(begun))
    _remove_interrupted(folder, [MANIFEST, *earlier, *listed])
    _remove(folder, earlier)
    for name, data in files.items():
        write_atomically(folder / name, data)
    whole = {**head, **manifest, "files": listed}
    signed = _signed(whole, folder) if any(map(is_code, files)) else {}
    write_atomically(folder / MANIFEST, serialise_manifest({**whole, **signed}))
    return {**manifest, "files": listed, **signed}


def is_code(name: str) -> bool:
    """Return whether a file of an artifact contains machine code.

    Args:
        name: name of the file, by whose ending this is judged.
    """
    return name.endswith(".so")


def _signed(manifest: Mapping[str, Json], folder: Path) -> dict[str, Json]:
    """Sign a manifest, and return the entry that is added to it.

    Args:
        manifest: the manifest.
        folder: folder of the artifact.

    Returns:
        The entry with the signature, or an entry with the reason why the manifest cannot be signed.
    """
    try:
        return {SIGNATURE: sign(manifest, folder)}
    except SigningError as error:
        return {UNSIGNED: str(error)}


def serialise_manifest(manifest: Mapping[str, Json]) -> bytes:
    """Serialise a manifest as JSON that contains its own digest.

    The digest is computed from the text in which the digest itself is replaced by zeros.
    """
    blank = {**manifest, "sha256": _BLANK}
    text = json.dumps(blank, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    before, _, after = text.rpartition(_BLANK.encode())
    return before + digest(text).encode() + after


def specification(target: Target, kind: str) -> dict[str, Json]:
    """Return the description of a target, from which `targets.registry.rebuild` can recreate it.

    Args:
        target: the target.
        kind: type of the target, for example "vta".

    Returns:
        The description.
    """
    keys = specification_of(target) or {}
    return {"kind": kind, "keys": keys, "fingerprint": target.fingerprint}


def read_manifest(folder: Path) -> dict[str, Json]:
    """Read the manifest of an artifact.

    Args:
        folder: folder of the artifact.

    Returns:
        The manifest.

    Raises:
        ArtifactError: the manifest is damaged, or the build of the artifact was not finished.
    """
    manifest = _read_manifest(folder)
    if "unfinished" in manifest:
        raise ArtifactError(
            f"the build of {folder} was stopped before it was complete; repeat 'tilewright build'"
        )
    return manifest


def _read_manifest(folder: Path) -> dict[str, Json]:
    """Read the manifest of an artifact, even if the build of the artifact was not finished.

    Raises `ArtifactError` if it is missing or damaged.
    """
    if not folder.is_dir():
        raise ArtifactError(
            f"{folder} is not an artifact: the folder does not exist; create an artifact "
            "with 'tilewright build'"
        )
    try:
        raw = read_plain(folder / MANIFEST, limit=MAX_JSON_BYTES)
        manifest = as_object(read_json(raw))
    except FileNotFoundError:
        raise ArtifactError(
            f"{folder} is not an artifact: it has no {MANIFEST}; create an artifact with "
            "'tilewright build'"
        ) from None
    except ValueError:
        raise ArtifactError(f"{folder / MANIFEST} is damaged; {BUILD_AGAIN}") from None
    except OSError as error:
        raise ArtifactError(
            f"cannot read {folder / MANIFEST}: {error.strerror}; check the file and its permissions"
        ) from None
    if manifest.get("format") not in FORMATS:
        raise ArtifactError(
            f"{folder} is not an artifact: its {MANIFEST} was written by another program; "
            "create an artifact with 'tilewright build'"
        )
    if refusal := ARTIFACT.refusal(folder, ARTIFACT.version_in(manifest)):
        raise ArtifactError(refusal)
    said = manifest.pop("sha256", None)
    before, _, after = raw.rpartition(str(said).encode())
    if said != digest(before + _BLANK.encode() + after):
        raise ArtifactError(f"{folder / MANIFEST} was changed after the build; {BUILD_AGAIN}")
    names, earlier = manifest.get("files"), manifest.get("earlier", {})
    if not isinstance(names, dict) or not isinstance(earlier, dict):
        raise ArtifactError(
            f"{folder / MANIFEST} does not list the artifact's files; {BUILD_AGAIN}"
        )
    for name in (*names, *earlier):
        if not _PLAIN.fullmatch(name):
            raise ArtifactError(
                f"{folder / MANIFEST} lists {name!r:.80}, which is not a valid file name in "
                f"an artifact; {BUILD_AGAIN}"
            )
    return manifest


def read_files(
    folder: Path, manifest: Mapping[str, Json], most: int = MOST_BYTES
) -> dict[str, bytes]:
    """Read the files of an artifact and compare each with its size and digest in the manifest.

    Args:
        folder: folder of the artifact.
        manifest: the manifest.
        most: maximum total size in bytes.

    Returns:
        The content of each file, by name.

    Raises:
        ArtifactError: a file is missing or was changed, or the files are too large.
        KeyError: the manifest lacks the size or the digest of a file.
        ValueError: a size or a digest in the manifest is invalid.
    """
    listed = {name: as_object(said) for name, said in as_object(manifest["files"]).items()}
    sizes = {name: as_int(said["bytes"]) for name, said in listed.items()}
    if sum(map(abs, sizes.values())) > most:
        raise ArtifactError(
            f"{folder / MANIFEST} lists files of more than {most >> 30} GiB, the limit for "
            f"an artifact; {BUILD_AGAIN}"
        )
    files = {}
    for name, known in listed.items():
        path, size = _path_of(folder, name), sizes[name]
        try:
            data = read_plain(path, limit=max(1, size))
        except FileNotFoundError:
            raise ArtifactError(f"{path} is missing; {BUILD_AGAIN}") from None
        except (OSError, TilewrightError) as error:
            raise ArtifactError(f"cannot read {path}: {error}; {BUILD_AGAIN}") from None
        if len(data) != size or hashlib.sha256(data).hexdigest() != as_text(known["sha256"]):
            raise ArtifactError(f"{path} has other bytes than when it was built; {BUILD_AGAIN}")
        files[name] = data
    return files


def map_file(
    folder: Path, manifest: Mapping[str, Json], name: str, most: int = MOST_BYTES
) -> NDArray[np.uint8]:
    """Map a file of an artifact into memory, after comparing it with its digest.

    Pages are read from the disk when they are used. A later build into the same folder does not
    change the mapped content.

    Args:
        folder: folder of the artifact.
        manifest: the manifest.
        name: name of the file.
        most: maximum size in bytes.

    Returns:
        The content, uint8 array of shape (bytes,).

    Raises:
        ArtifactError: the file is missing, was changed, or is too large.
        KeyError: the manifest lacks the size or the digest of the file.
        ValueError: the size or the digest in the manifest is invalid.
    """
    said, path = as_object(as_object(manifest["files"])[name]), _path_of(folder, name)
    size = as_int(said["bytes"])
    if not 0 < size <= most:
        raise ArtifactError(
            f"{folder / MANIFEST} lists {name} with an invalid size of {size} bytes; {BUILD_AGAIN}"
        )
    try:
        handle = open_to_read(path)
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing; {BUILD_AGAIN}") from None
    except (OSError, TilewrightError) as error:
        raise ArtifactError(f"cannot read {path}: {error}; {BUILD_AGAIN}") from None
    with os.fdopen(handle, "rb", buffering=0) as file:
        result = hashlib.file_digest(file, "sha256").hexdigest()
        if os.fstat(handle).st_size != size or result != as_text(said["sha256"]):
            raise ArtifactError(f"{path} has other bytes than when it was built; {BUILD_AGAIN}")
        # Copy-on-write, because TVM does not share memory with arrays that are read-only.
        return np.frombuffer(mmap.mmap(handle, size, access=mmap.ACCESS_COPY), np.uint8)


def _path_of(folder: Path, name: str) -> Path:
    """Return the path of a file of an artifact.

    Raises `ArtifactError` if the file, or a folder on its path, is a symbolic link, because an
    artifact from another person must not refer to files outside its folder.
    """
    if link := _link_to(folder, name):
        raise ArtifactError(
            f"{link} is a symbolic link, which 'tilewright build' never creates; {BUILD_AGAIN}"
        )
    return folder / name


def _link_to(folder: Path, name: str) -> Path | None:
    """Return the first symbolic link on the path from the folder to a file, or None."""
    path = folder
    for part in name.split("/"):
        path /= part
        if path.is_symlink():
            return path
    return None


def _files_of(folder: Path) -> dict[str, Json]:
    """Return the files of the artifact in a folder, with their manifest entries.

    Files behind a symbolic link are left out. The result is empty if there is no readable artifact.
    """
    try:
        manifest = _read_manifest(folder)
        files = {**as_object(manifest.get("earlier", {})), **as_object(manifest["files"])}
        return {name: said for name, said in files.items() if not _link_to(folder, name)}
    except (OSError, ValueError, ArtifactError):
        return {}


def _remove(folder: Path, files: Mapping[str, Json]) -> None:
    """Remove files of an earlier artifact, except files that were changed since they were written.

    Args:
        folder: folder of the artifact.
        files: manifest entries with size and digest, by file name.
    """
    for name, said in files.items():
        with suppress(ArtifactError, ValueError, KeyError):
            read_files(folder, {"files": {name: said}})
            remove(folder / name)


def _remove_interrupted(folder: Path, names: Sequence[str]) -> None:
    """Remove the temporary files that an interrupted write left in a folder.

    Args:
        folder: folder of the artifact.
        names: names of the files that were being written.
    """
    for place in {(folder / name).parent for name in names}:
        matching = {(folder / name).name for name in names if (folder / name).parent == place}
        for path in list(place.iterdir()) if place.is_dir() else []:
            match = _IN_PROGRESS.fullmatch(path.name)
            if match and match[1] in matching:
                remove(path)


SIGNATURE, UNSIGNED = "signature", "unsigned"
"""Keys of the manifest for the signature, and for the reason why the artifact is not signed."""
_SEAL_KEYS = (SIGNATURE, "sha256")
_PURPOSE = "tilewright artifact, version 1"


def sign(manifest: Mapping[str, Json], folder: Path) -> str:
    """Return the signature of an artifact, 64 hexadecimal digits.

    The workspace and its key are created if they do not exist.

    Args:
        manifest: the manifest of the artifact.
        folder: folder of the artifact. It must exist, because the signature is valid only for this
            folder.

    Returns:
        The signature.

    Raises:
        SigningError: the workspace cannot store a key, or the folder is missing.
    """
    try:
        return signing.sign(_PURPOSE, _content(manifest, folder))
    except OSError as error:
        raise SigningError(f"cannot sign {folder}: {error.strerror or error}") from None


def reason_for_doubt(manifest: Mapping[str, Json], folder: Path) -> str:
    """Return why an artifact does not count as built by the user, or "" if its signature is valid.

    The reason is a clause that can end a sentence. Unlike `sign`, this function never creates a
    key.

    Args:
        manifest: the manifest of the artifact.
        folder: folder of the artifact.

    Returns:
        The reason.
    """
    signature = manifest.get(SIGNATURE)
    if not isinstance(signature, str):
        return "it is not signed, so it was built by someone else or by an earlier version"
    try:
        if signing.is_own(_PURPOSE, _content(manifest, folder), signature):
            return ""
        root = workspace_root()
    except (OSError, RuntimeError, SigningError) as error:
        return f"its signature cannot be checked ({error})"
    return (
        f"its signature was not made in your workspace {root} for this folder, so it was "
        "built by someone else or in another workspace, or was copied or changed afterwards"
    )


def _content(manifest: Mapping[str, Json], folder: Path) -> str:
    """Return the text to sign: the digest of the manifest, and the inode number of the folder.

    Raises `OSError` if the folder is missing.
    """
    # The form in which the manifest is read again: lists for tuples, and text for numeric keys.
    plain = read_json(json.dumps({k: v for k, v in manifest.items() if k not in _SEAL_KEYS}))
    return f"{digest(canonical(plain))} {os.stat(folder).st_ino}"
