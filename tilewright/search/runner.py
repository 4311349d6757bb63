"""Runner that executes the steps of a run in this process.

`tasks.runner_prefect` has a subclass that shows the steps in a workflow engine and keeps their
results.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from tilewright.search.events import Listener, StageBegan, ignore

T = TypeVar("T")
Y = TypeVar("Y")


class LocalRunner:
    """Executes each step immediately in this process. `emit` receives the events."""

    def __init__(self, emit: Listener = ignore) -> None:
        self.emit = emit

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        """Call `step` with the given arguments and report it. Errors of the step are passed on."""
        self.emit(StageBegan(step.__name__))
        return step(*given)

    def call(self, step: Callable[..., T], *given: Any) -> T:
        """Call a step without reporting it."""
        return step(*given)

    def workload(
        self, flow: Callable[..., Generator[Y, None, T]], *given: Any
    ) -> Generator[Y, None, T]:
        """Run the steps of one workload: call `flow` with this runner and the given arguments."""
        return flow(self, *given)
