"""Performs some steps of a flow as Prefect tasks, with a run in MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from tilewright.search.events import Listener, StageBegan
from tilewright.search.runner import LocalRunner, Result, values
from tilewright.tasks import tracking

T = TypeVar("T")

Step = Callable[..., Any]


class TrackedRunner(LocalRunner):
    """Performs the steps of `own` by what stands for each there. A context: it ends the run
    `run_id` in MLflow, if one was opened, as finished, failed, or stopped by a person."""

    def __init__(self, emit: Listener, own: Mapping[Step, Step]) -> None:
        super().__init__(emit)
        self.own = own
        self.run_id = ""
        self._monitor: SystemMetricsMonitor | None = None

    def belong_to(self, run_id: str) -> None:
        """Be the steps of a run in MLflow, which gets figures of the machine from now on."""
        self.run_id, self._monitor = run_id, tracking.start_monitor(run_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._monitor is not None:
            self._monitor.finish()  # type: ignore[no-untyped-call]
        if self.run_id:
            tracking.close_run(self.run_id, tracking.ended_by(error))

    def __call__(self, step: Callable[..., T], *given: object) -> Result[T]:
        self.announce(step)
        perform: Callable[..., T] = self.own.get(step, step)
        return Result(perform(*values(given)))

    def log(self, step: Callable[..., T], *given: object) -> T:
        done: T = super().log(self.own.get(step, step), *given)
        return done

    def announce(self, step: Step) -> None:
        """Say that a step begins."""
        self.emit(StageBegan(step.__name__))
