"""Shows the progress of `tilewright build`."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console

from tilewright.cli.views.terminal import progress_bar


class Building:
    """A bar that says what is under way; nothing where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._bar = progress_bar(console)
        self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._bar.stop()

    def stage(self, what: str) -> None:
        """What begins."""
        self._bar.update(self._task, description=what, total=None, completed=0)

    def progress(self, done: int, whole: int) -> None:
        """How many of how many workloads have a schedule."""
        self._bar.update(self._task, completed=done, total=whole)
