"""Performs the steps of a run. `LocalRunner` calls them. One that stores results and shows them to
a workflow engine is a subclass (`tasks.runner`).

A runner takes and gives `Result`s: values with what the runner knows them by. A step itself sees
plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar

from tilewright.search import round_steps
from tilewright.search.events import Listener, StageBegan, ignore
from tilewright.search.explorer import ExplorerState, History
from tilewright.search.setting import Setting

T = TypeVar("T")
J = TypeVar("J")
Y = TypeVar("Y")


class Result(Generic[T]):
    """A value that a step takes or gives. A runner that keeps values returns a subclass."""

    def __init__(self, value: T) -> None:
        self.value = value


class LocalRunner:
    """Performs each step in this process, here and now. `emit` hears what happens."""

    def __init__(self, emit: Listener = ignore) -> None:
        self.emit = emit

    def __call__(self, step: Callable[..., T], *given: object) -> Result[T]:
        """Call `step` with the values of what is given. Raises what the step does."""
        self.emit(StageBegan(step.__name__))
        return Result(step(*values(given)))

    def call(self, step: Callable[..., T], *given: object) -> T:
        """Call a step for which no result of an earlier run stands, and return its plain value."""
        return step(*values(given))

    def workload(
        self, flow: Callable[[LocalRunner, J], Generator[Y, None, T]], job: J
    ) -> Generator[Y, None, T]:
        """The steps of one workload, `flow`, with a runner for them."""
        return flow(self, job)

    def keep(self, value: T) -> Result[T]:
        """A value that no step made, to be given to steps."""
        return Result(value)

    def begin(self, setting: Setting, state: ExplorerState) -> Result[ExplorerState]:
        """`round_steps.begin`, which is part of the first round."""
        return Result(round_steps.begin(setting, state))

    def after_each(
        self,
        step: Callable[[Setting, ExplorerState, History], ExplorerState],
        setting: Setting,
        state: Result[ExplorerState],
        histories: Sequence[Result[History]],
    ) -> Result[ExplorerState]:
        """The state that a step gives after the last of several rounds, called after each."""
        for history in histories:
            state = self(step, setting, state, history)
        return state


def values(given: Sequence[object]) -> list[object]:
    """Results as their values, anything else as it is."""
    return [each.value if isinstance(each, Result) else each for each in given]
