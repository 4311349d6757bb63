"""Prefect flow that shows the steps of one workload within the flow of the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.schemas.objects import State, StateDetails
from prefect.states import Completed

from tilewright.targets.display_names import ascii_only, layer
from tilewright.tasks.run_tags import Params
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.results import TunedWorkload
from tilewright.tuning.run_flows import Flow
from tilewright.tuning.tuning_task import TuningTask

WORKLOAD_FLOW = "layer"
"""Name of the flow that tunes a workload. Prefect's graph labels a node with the names of the flow
and of its run, such as `layer / conv1 - 7x7/2`. Both names are short, so that the labels of all
layers can be read side by side."""


def followed_flow(flow_run_id: str) -> State[str]:
    """Return a state with which a task can wait for a flow, in the task's argument `wait_for`.

    Prefect's graph then shows an edge from the flow to the task. The flow's own result cannot be
    used for this: Prefect's web pages fail to list a reference to it, and report `Invalid
    TaskInputResponse`. They can list a reference to a task. In the graph, the node of a flow has
    the ID of the flow run. The returned state therefore claims to belong to a task run with this
    ID.

    Args:
        flow_run_id: ID of the run of a flow with the same parent as the task.
    """
    # Prefect refuses a state without data.
    return Completed(data=flow_run_id, state_details=StateDetails(task_run_id=UUID(flow_run_id)))


def workload_flow(
    steps: Callable[[], Flow[TunedWorkload]],
    options: TuningOptions,
    task: TuningTask,
    params: Params,
    parent: str,
    after: Sequence[object],
) -> Flow[TunedWorkload]:
    """Run the steps of a workload in a Prefect flow of its own.

    Args:
        steps: function that returns the generator of the steps.
        options: options of the run.
        task: task of the workload.
        params: parameters of the run.
        parent: MLflow run of the network.
        after: tasks that precede the flow in Prefect's graph.

    Returns:
        A generator that yields what the steps yield, and returns the tuned workload.
    """
    name = ascii_only(layer(task.names, task.workload))  # Prefect's graph draws only ASCII

    @flow(
        name=WORKLOAD_FLOW,
        flow_run_name=lambda: name,
        persist_result=False,
        validate_parameters=False,
    )
    def tune_workload(
        options: TuningOptions, params: Params, task: TuningTask, parent_run_id: str
    ) -> Flow[TunedWorkload]:
        """Tune one workload in rounds until all trials are made, and verify the chosen schedule."""
        return (yield from steps())

    flow_run: Any = tune_workload  # it also accepts `wait_for`
    shown: Flow[TunedWorkload] = flow_run(options, params, task, parent, wait_for=after)
    return shown
