"""Performs the steps of a run in this process. A runner that shows them to a workflow engine and
keeps their results is a subclass (`tasks.runner_prefect`)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from tilewright.search.events import Listener, StageBegan, ignore

T = TypeVar("T")
Y = TypeVar("Y")


class LocalRunner:
    """Performs each step in this process, here and now. `emit` hears what happens."""

    def __init__(self, emit: Listener = ignore) -> None:
        self.emit = emit

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        """Call `step`. Raises what the step does."""
        self.emit(StageBegan(step.__name__))
        return step(*given)

    def call(self, step: Callable[..., T], *given: Any) -> T:
        """Call a step that is not announced."""
        return step(*given)

    def workload(
        self, flow: Callable[..., Generator[Y, None, T]], *given: Any
    ) -> Generator[Y, None, T]:
        """The steps of one workload, `flow`, with a runner for them."""
        return flow(self, *given)
