"""Base class of runners that execute some steps as Prefect tasks and have a run in MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Self, TypeVar

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from tilewright.search.events import Listener, StageBegan
from tilewright.search.runner import LocalRunner
from tilewright.tasks import tracking
from tilewright.tasks.cached_task import RunName, step

T = TypeVar("T")

Step = Callable[..., Any]


def as_task(work: Step, run_name: RunName, body: Step | None = None) -> Step:
    """Make a Prefect task that executes a step.

    Args:
        work: the step. The task gets its name.
        run_name: name of the task's runs: a template, or a function of the arguments by name.
        body: function to call instead of `work`, with the same arguments; None to call `work`.

    Returns:
        A function with the signature of `work` that runs the task.
    """
    return wraps(work)(step(run_name, work.__name__)(body or work))


class TrackedRunner(LocalRunner):
    """Runner that replaces some steps by its own implementations, such as Prefect tasks.

    Use it as a context manager. If an MLflow run was opened (`run_id`), it ends with the context,
    as finished, failed or stopped by the user.

    Args:
        emit: function that receives the events.
        own: replacement for each step that this runner executes in a different way, by the original
            step. All other steps are called directly.
        system_metrics: whether to log system metrics to the MLflow run.
    """

    def __init__(
        self, emit: Listener, own: Mapping[Step, Step], *, system_metrics: bool = False
    ) -> None:
        super().__init__(emit)
        self.own = own
        self.system_metrics = system_metrics
        self.run_id = ""
        self._monitor: SystemMetricsMonitor | None = None

    def belong_to(self, run_id: str) -> None:
        """Set the MLflow run to which this runner logs, and which it ends.

        If system metrics were requested, they are logged to that run from now on.

        Args:
            run_id: ID of the MLflow run.
        """
        self.run_id = run_id
        self._monitor = tracking.start_monitor(run_id, self.system_metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._monitor is not None:
            self._monitor.finish()  # type: ignore[no-untyped-call]
        if self.run_id:
            tracking.close_run(self.run_id, tracking.ended_by(error))

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        """Report that a step begins, execute the step or its replacement, and return its result.

        Args:
            step: the step.
            *given: arguments of the step.
        """
        self.announce(step)
        perform: Callable[..., T] = self.own.get(step, step)
        return perform(*given)

    def call(self, step: Callable[..., T], *given: Any) -> T:
        """Execute a step or its replacement without reporting it, and return its result.

        Args:
            step: the step.
            *given: arguments of the step.
        """
        done: T = super().call(self.own.get(step, step), *given)
        return done

    def announce(self, step: Step) -> None:
        """Emit a `StageBegan` event with the name of a step."""
        self.emit(StageBegan(step.__name__))
