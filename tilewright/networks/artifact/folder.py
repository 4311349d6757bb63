"""Writes and reads the files of an artifact, and checks their digests.

The manifest has the SHA-256 of each file, and its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.core.files import (
    Json,
    as_int,
    as_object,
    as_text,
    digest,
    read_json,
    remove,
    write_atomically,
)
from tilewright.core.safe_files import read_plain
from tilewright.networks.artifact.errors import ArtifactError
from tilewright.targets.base import Target
from tilewright.targets.capabilities import specification_of

MANIFEST = "manifest.json"
FORMAT, VERSION = "tilewright artifact", 2
FORMATS = (FORMAT, "tilewright artefact")
"""What is read: the second is how 0.1 spelled it."""
MOST_BYTES = 1 << 31
"""Of one file."""
MANIFEST_BYTES = 1 << 28
_BLANK = "0" * 64
AGAIN = "copy the artifact again, or build it again from its model"


def in_the_way(folder: Path) -> str | None:
    """What keeps an artifact from being written to a folder, in words; None if nothing does."""
    if not folder.exists() and not folder.is_symlink():
        return None
    if not folder.is_dir():
        return "it is not a folder"
    if not any(folder.iterdir()) or is_artifact(folder):
        return None
    return "it holds other files"


def is_artifact(folder: Path) -> bool:
    """Whether a folder holds an artifact, whole or not."""
    try:
        found = as_object(read_json(read_plain(folder / MANIFEST, limit=MANIFEST_BYTES)))
    except (OSError, ValueError, RecursionError, TilewrightError):
        return False
    return found.get("format") in FORMATS


def write_folder(folder: Path, files: Mapping[str, bytes], manifest: Mapping[str, Json]) -> None:
    """Write an artifact in the place of an earlier one, the manifest last. Raises `ArtifactError`
    where something else is there, and `OSError`."""
    problem = in_the_way(folder)
    if problem:
        raise ArtifactError(
            f"{folder} is not written to: {problem}; choose another folder with --out"
        )
    if folder.is_dir():
        _forget(folder)
    for name, data in files.items():
        write_atomically(folder / name, data, within=folder)
    listed: dict[str, Json] = {
        name: {"bytes": len(data), "sha256": digest(data)} for name, data in sorted(files.items())
    }
    whole: dict[str, Json] = {"format": FORMAT, "version": VERSION, **manifest, "files": listed}
    write_atomically(folder / MANIFEST, sealed(whole), within=folder)


def sealed(manifest: Mapping[str, Json]) -> bytes:
    """A manifest as a file that knows its own digest: that of its bytes with zeros in its place."""
    blank = {**manifest, "sha256": _BLANK}
    text = json.dumps(blank, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    before, _, after = text.rpartition(_BLANK.encode())
    return before + digest(text).encode() + after


def specification(target: Target, kind: str) -> dict[str, Json]:
    """By what `targets.registry.rebuild` makes the target again, of that kind."""
    keys = specification_of(target) or {}
    return {"kind": kind, "keys": keys, "fingerprint": target.fingerprint}


def read_manifest(folder: Path) -> dict[str, Json]:
    """Raises `ArtifactError`."""
    if not folder.is_dir():
        raise ArtifactError(
            f"{folder} is not an artifact: there is no such folder; make one with "
            "'tilewright build'"
        )
    try:
        raw = read_plain(folder / MANIFEST, limit=MANIFEST_BYTES)
        manifest = as_object(read_json(raw))
    except FileNotFoundError:
        raise ArtifactError(
            f"{folder} is not an artifact: it has no {MANIFEST}; make one with 'tilewright build'"
        ) from None
    except (ValueError, RecursionError):
        raise ArtifactError(f"{folder / MANIFEST} is damaged; {AGAIN}") from None
    except OSError as error:
        raise ArtifactError(f"cannot read {folder / MANIFEST}: {error.strerror}") from None
    if manifest.get("format") not in FORMATS:
        raise ArtifactError(
            f"{folder} is not an artifact: its {MANIFEST} is another program's; make one with "
            "'tilewright build'"
        )
    if manifest.get("version") != VERSION:
        raise ArtifactError(
            f"{folder} is an artifact of version {manifest.get('version')}, this program reads "
            f"{VERSION}; build it again, or install the program that built it"
        )
    said = manifest.pop("sha256", None)
    before, _, after = raw.rpartition(str(said).encode())
    if said != digest(before + _BLANK.encode() + after):
        raise ArtifactError(
            f"{folder / MANIFEST} has other content than when it was built; {AGAIN}"
        )
    return manifest


def read_files(folder: Path, manifest: Mapping[str, Json]) -> dict[str, bytes]:
    """All files of an artifact by name, each compared with what the manifest says of it. Raises
    `ArtifactError`."""
    files = {}
    for name, said in as_object(manifest["files"]).items():
        path, known = folder / name, as_object(said)
        size = as_int(known["bytes"])
        try:
            data = read_plain(path, within=folder, limit=max(1, min(size, MOST_BYTES)))
        except FileNotFoundError:
            raise ArtifactError(f"{path} is missing; {AGAIN}") from None
        except (OSError, TilewrightError) as error:
            raise ArtifactError(f"cannot read {path}: {error}; {AGAIN}") from None
        if len(data) != size or hashlib.sha256(data).hexdigest() != as_text(known["sha256"]):
            raise ArtifactError(f"{path} has other bytes than when it was built; {AGAIN}")
        files[name] = data
    return files


def _forget(folder: Path) -> None:
    """Remove the files of an earlier artifact, first what says that it is one."""
    with suppress(OSError, ValueError, KeyError, ArtifactError):
        names = list(as_object(read_manifest(folder)["files"]))
        remove(folder / MANIFEST, within=folder)
        for name in names:
            remove(folder / name, within=folder)
    remove(folder / MANIFEST, within=folder)
