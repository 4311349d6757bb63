"""Shows the steps of one workload as a Prefect flow of its own, below that of the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prefect import flow

from tilewright.targets.display_names import ascii_only, layer
from tilewright.tasks.run_tags import Params
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.results import TunedWorkload
from tilewright.tuning.run_flows import Flow
from tilewright.tuning.tuning_task import TuningTask

WORKLOAD_FLOW = "tune_workload"


def workload_flow(
    steps: Callable[[], Flow[TunedWorkload]],
    options: TuningOptions,
    task: TuningTask,
    params: Params,
    parent: str,
    after: Sequence[object],
) -> Flow[TunedWorkload]:
    """Run the steps of a workload in a Prefect flow, behind the tasks `after`. It stops where they
    stop. `parent` is the network's run in MLflow."""
    title = layer(task.names, task.workload)
    name = f"{options.subject}: {ascii_only(title)}"  # Prefect's graph draws nothing else

    @flow(
        name=WORKLOAD_FLOW,
        flow_run_name=lambda: name,
        persist_result=False,
        validate_parameters=False,
    )
    def tune_workload(
        options: TuningOptions, params: Params, task: TuningTask, parent_run_id: str
    ) -> Flow[TunedWorkload]:
        """Tune one workload: rounds of candidates until the trials are spent, then the proof."""
        return (yield from steps())

    flow_run: Any = tune_workload  # which takes `wait_for`, too
    shown: Flow[TunedWorkload] = flow_run(options, params, task, parent, wait_for=after)
    return shown
