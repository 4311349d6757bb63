"""Runner that executes the steps of a run in this process.

`tasks.runner_prefect` has a subclass that displays the steps in the workflow engine Prefect and
caches their results.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from tilewright.search.events import Listener, StageBegan, ignore

T = TypeVar("T")
Y = TypeVar("Y")


class LocalRunner:
    """Runner that executes each step immediately in this process.

    Args:
        emit: callback that receives the events.
    """

    def __init__(self, emit: Listener = ignore) -> None:
        self.emit = emit

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        """Call `step` with the given arguments and emit a `StageBegan` event.

        Exceptions of the step are not caught.
        """
        self.emit(StageBegan(step.__name__))
        return step(*given)

    def call(self, step: Callable[..., T], *given: Any) -> T:
        """Call a step without emitting an event."""
        return step(*given)

    def workload(
        self, flow: Callable[..., Generator[Y, None, T]], *given: Any
    ) -> Generator[Y, None, T]:
        """Start the flow that tunes one workload.

        Args:
            flow: generator function that takes this runner, followed by `given`.
            *given: arguments of the flow.
        """
        return flow(self, *given)
