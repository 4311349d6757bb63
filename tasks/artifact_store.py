"""Stores finished stages: manifests in JSON, data in files named by their digest.

    cache/manifests/<stage>/<key>.json    what a stage left, under the digest of what it was given
    cache/data/<sha256>.npz               arrays;  .zip: a tuner's state

The files belong to the user and are trusted. A file that a killed command or a failed disk left
torn is noticed by its digest, and computed again; so nothing here waits for the disk.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, canonical, digest, write_atomically
from tilewright.core.formats import STAGE
from tilewright.services.retention import DAY

T = TypeVar("T")
KEPT_OBJECTS = 64


class DamagedFile(TilewrightError):
    """A cached file that is missing or is not what was written."""


@dataclass(frozen=True)
class Manifest:
    """What a finished stage left behind; the only thing that passes between stages.

    `key` identifies it by what it was made from, `values` holds small facts, `files` maps a role to
    the name of a data file.
    """

    stage: str
    key: str
    values: dict[str, Json] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CacheUse:
    """Where stages keep what they did, and whether they look there first: plain enough to be sent
    to another process."""

    root: str
    refresh: bool = False

    @property
    def store(self) -> Store:
        """The cache, the same object for every use of this folder."""
        return _store(self.root)


@cache
def _store(root: str) -> Store:
    return Store(Path(root))


class Store:
    """A cache folder, for any number of threads and processes. Objects written or read by this
    process are kept in memory, too."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._objects: OrderedDict[str, object] = OrderedDict()
        self._changing = threading.Lock()

    def put(self, thing: T, encode: Callable[[T], bytes], suffix: str) -> str:
        """Write a data file unless it is there already; returns its name."""
        data = encode(thing)
        name = digest(data) + suffix
        if self.intact(name):
            self._note_use(self._data(name))
        else:
            self._write(self._data(name), data)
        self._keep(name, thing)
        return name

    def get(self, name: str, decode: Callable[[bytes], T]) -> T:
        """The object a data file holds. Raises `DamagedFile`."""
        with self._changing:
            if name in self._objects:
                self._objects.move_to_end(name)
                return cast(T, self._objects[name])
        data = self._read(name)
        if data is None:
            raise DamagedFile(
                f"{self._data(name)} is damaged or missing; repeat the command with --fresh"
            )
        thing = decode(data)
        self._keep(name, thing)
        return thing

    def intact(self, name: str) -> bool:
        """Whether a data file is there and is what its name says."""
        return self._read(name) is not None

    def save(self, manifest: Manifest) -> None:
        """Write a manifest; its data files are there already."""
        whole = {"manifest": asdict(manifest), "version": STAGE.written}
        # Keys stay in order: results are written in it, whether computed or found here.
        text = json.dumps(whole, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        self._write(self._manifest(manifest.stage, manifest.key), text.encode())

    def find(self, stage: str, key: str, *, with_data: bool = True) -> Manifest | None:
        """The manifest saved under this key, if it is of a version that is read, and it and all
        its data files are intact."""
        try:
            found = json.loads(self._manifest(stage, key).read_bytes())
            if not STAGE.reads(STAGE.version_in(found)):
                return None
            manifest = Manifest(**found["manifest"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if with_data and not all(self.intact(name) for name in manifest.files.values()):
            return None
        self._note_use(self._manifest(stage, key))
        return manifest

    def _note_use(self, path: Path) -> None:
        """Date a file anew, once a day: `services.retention` removes what nobody uses."""
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - DAY:
                os.utime(path)

    def _read(self, name: str) -> bytes | None:
        try:
            data = self._data(name).read_bytes()
        except OSError:
            return None
        return data if digest(data) == name.partition(".")[0] else None

    def _write(self, path: Path, data: bytes) -> None:
        write_atomically(path, data, sync=False)

    def _keep(self, name: str, thing: object) -> None:
        with self._changing:
            self._objects[name] = thing
            while len(self._objects) > KEPT_OBJECTS:
                self._objects.popitem(last=False)

    def _data(self, name: str) -> Path:
        return self.root / "data" / name

    def _manifest(self, stage: str, key: str) -> Path:
        return self.root / "manifests" / stage / f"{key}.json"


def cache_key(stage: str, version: int, fingerprint: str, inputs: Mapping[str, Json]) -> str:
    """Digest of canonical JSON of all that a stage's result depends on.

    `version` counts the stage's own schema, `fingerprint` covers hardware, space, compiler and
    simulator, `inputs` are digests of data and the options in force.
    """
    text = canonical(
        {"stage": stage, "version": version, "target": fingerprint, "inputs": dict(inputs)}
    )
    return digest(text)[:32]
