"""Shows the progress of `tilewright build` and `tilewright benchmark`."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console

from tilewright.cli.views.terminal import Bars
from tilewright.evaluation.engines.timing import RoundTimed
from tilewright.flows.build import SchedulesFound
from tilewright.search.events import Event, StageBegan

_STAGES = {
    "integer_network": "quantising",
    "read_layers": "reading",
    "choose_schedules": "choosing schedules",
    "choose_kernels": "choosing schedules",
    "link_artifact": "linking",
    "compile_library": "compiling",
    "faster_in_onnxruntime": "timing",
    "read_sizes": "reading",
    "join_sizes": "comparing sizes",
    "write_library": "writing",
    "write_model": "preparing",
    "time_engines": "timing",
}


class Building:
    """Says what is under way."""

    def __init__(self, console: Console) -> None:
        self._bar = Bars(console)
        self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Show what begins, and how many of how many schedules or quiet rounds there are."""
        match event:
            case StageBegan():
                what = _STAGES.get(event.name, event.name)
                self._bar.update(self._task, description=what, total=None, completed=0)
            case SchedulesFound():
                self._bar.update(self._task, completed=event.done, total=event.whole)
            case RoundTimed():
                self._bar.update(self._task, completed=event.quiet, total=event.wanted)
