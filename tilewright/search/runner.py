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
    """Runner that executes each step of a run immediately in this process.

    A step is a plain function, such as those in `search.round_steps`.

    Args:
        emit: callback that receives the events.
    """

    def __init__(self, emit: Listener = ignore) -> None:
        self.emit = emit

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        """Execute a step, after emitting a `StageBegan` event with its name.

        Exceptions of the step are not caught.

        Args:
            step: function that performs the step.
            *given: arguments of the step.

        Returns:
            The result of the step.
        """
        self.emit(StageBegan(step.__name__))
        return step(*given)

    def call(self, step: Callable[..., T], *given: Any) -> T:
        """Execute a step without emitting an event.

        Args:
            step: function that performs the step.
            *given: arguments of the step.
        """
        return step(*given)

    def workload(
        self, flow: Callable[..., Generator[Y, None, T]], *given: Any
    ) -> Generator[Y, None, T]:
        """Start the flow that tunes one workload, and return its generator.

        Args:
            flow: generator function that takes this runner, followed by `given`.
            *given: arguments of the flow.
        """
        return flow(self, *given)
