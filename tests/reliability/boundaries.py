"""Kills a process at a chosen write: before, during or after a system call that changes a file.

`Boundaries` wraps the calls in `CALLS` and counts them. If it is given a number, the process
receives SIGKILL when the count reaches that number.

The project writes its files through these functions of `os`, and Prefect writes through `open`.
Other libraries use neither. `report_unwatched_writers` therefore lists all files of a run that were
opened for writing in any other way.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("open", "write", "pwrite", "fsync", "ftruncate", "replace", "unlink")
NEVER = -1
_WATCHED = threading.local()


class Boundaries:
    """Counter of write boundaries, which may kill the process at one of them.

    Each call has a boundary before and one after it. A `write` has a third one, at which half of
    the data is written.
    """

    def __init__(self, folders: list[Path], kill_at: int = NEVER) -> None:
        self.folders = [str(folder.resolve()) for folder in folders]
        self.kill_at = kill_at
        self.count = 0
        self.places: list[str] = []
        self._ours: set[int] = set()

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        builtins.open = self._watched_open(builtins.open)

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            if not self._concerns(name, arguments, _folder(keywords)):
                return call(*arguments, **keywords)
            self._pass(f"before {name}")
            if name in ("write", "pwrite"):
                self._pass(
                    f"in {name}", lambda: call(arguments[0], _half(arguments[1]), *arguments[2:])
                )
            result = call(*arguments, **keywords)
            if name == "open":
                self._ours.add(result)
            self._pass(f"after {name}")
            return result

        return watched

    def _watched_open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            if not any(flag in mode for flag in "wax+") or not self._inside(path):
                return call(path, mode, *arguments, **keywords)
            self._pass("before open")
            _WATCHED.open = True
            try:
                file = call(path, mode, *arguments, **keywords)
            finally:
                _WATCHED.open = False
            self._pass("after open")
            file.write = self._watched_write(file, file.write)
            return file

        return watched

    def _watched_write(self, file: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        def half(data: Any) -> None:
            call(data[: len(data) // 2])
            file.flush()

        def watched(data: Any) -> Any:
            self._pass("before write")
            self._pass("in write", lambda: half(data))
            result = call(data)
            self._pass("after write")
            return result

        return watched

    def _pass(self, place: str, last_act: Callable[[], object] = lambda: None) -> None:
        if self.count == self.kill_at:
            last_act()
            os.kill(os.getpid(), signal.SIGKILL)
        self.places.append(place)
        self.count += 1

    def _concerns(self, name: str, arguments: tuple[Any, ...], folder: int | None) -> bool:
        if name == "open":
            writing = bool(arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            return writing and self._inside(arguments[0], folder)
        if name in ("replace", "unlink"):
            return self._inside(arguments[0], folder)
        return arguments[0] in self._ours and self._inside(f"/proc/self/fd/{arguments[0]}")

    def _inside(self, path: Any, folder: int | None = None) -> bool:
        """Return whether a path is below one of the folders.

        `folder` is the descriptor of the folder that a relative path starts from.
        """
        try:
            name = os.fspath(path)
        except TypeError:
            return False
        start = "" if folder is None else os.readlink(f"/proc/self/fd/{folder}")
        text = os.path.realpath(os.path.join(start, name))
        return any(text.startswith(folder) for folder in self.folders)


def _folder(keywords: dict[str, Any]) -> int | None:
    """Return the folder descriptor to which the paths of a call are relative, if there is one."""
    result: int | None = keywords.get("dir_fd", keywords.get("src_dir_fd"))
    return result


def _half(data: Any) -> Any:
    return memoryview(data)[: len(data) // 2]


def report_unwatched_writers(folders: list[Path]) -> list[str]:
    """Return a list that collects all other ways in which files of these folders are opened.

    The list grows from now on. It contains only files opened for writing.
    """
    inside = tuple(str(folder.resolve()) for folder in folders)
    writers: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        path, mode, _ = arguments
        if isinstance(mode, str) and not getattr(_WATCHED, "open", False):
            text = os.path.realpath(os.fsdecode(path))
            if any(flag in mode for flag in "wax+") and text.startswith(inside):
                writers.append(text)

    sys.addaudithook(hook)
    return writers
