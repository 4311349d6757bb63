"""Marks runs as crashed if their process was killed or if their end was not recorded.

The next run on the same output directory marks them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import flow_run
from prefect.states import Crashed
from pydantic.fields import FieldInfo

from tilewright.core.errors import TilewrightError
from tilewright.tasks.workload_flow import WORKLOAD_FLOW

UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
MESSAGE = (
    "the process of this run was killed; repeat the command with the same output directory to "
    "resume it"
)


class OutputOptions(Protocol):
    """Options of a run that has an output directory, as a pydantic model."""

    __pydantic_fields__: ClassVar[dict[str, FieldInfo]]

    @property
    def folder(self) -> Path:
        """Output directory of the run."""
        ...

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """Convert the parameters of a flow run to options.

        Raises:
            ValueError: the parameters are invalid.
        """
        ...


def retire_dead_runs(options: OutputOptions, current: str) -> int:
    """Mark all unfinished runs and tasks on an output directory as crashed, except the current run.

    The caller has the lock of the output directory, so no other run on it can still be alive.

    Args:
        options: options of the current run.
        current: ID of the current flow run.

    Returns:
        Number of runs that were marked.
    """
    unfinished = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=UNFINISHED))
    )
    with get_client(sync_client=True) as client:
        dead = [
            run.id
            for run in client.read_flow_runs(
                flow_filter=_same_flow_filter(), flow_run_filter=unfinished
            )
            if _on_folder(run, options, current) and not _about_to_start(run)
        ]
        for run_id in dead:
            client.set_flow_run_state(run_id, _crashed_state(), force=True)
        for task_id in _unfinished_tasks(client, options, current):
            client.set_task_run_state(task_id, _crashed_state(), force=True)
    return len(dead)


def _unfinished_tasks(
    client: SyncPrefectClient, options: OutputOptions, current: str
) -> list[UUID]:
    """Return the IDs of unfinished tasks of all other runs on the output directory.

    The run of such a task may have finished successfully. Tasks report their end through a queue of
    the server, and reports are lost if the disk is full or the server is killed.

    Args:
        client: Prefect client.
        options: options of the current run, which name the output directory.
        current: ID of the current flow run, whose tasks are left out.
    """
    state = TaskRunFilterState(type=TaskRunFilterStateType(any_=UNFINISHED))
    tasks = client.read_task_runs(task_run_filter=TaskRunFilter(state=state))
    owners = {task.flow_run_id for task in tasks if task.flow_run_id is not None}
    if not owners:
        return []
    runs = client.read_flow_runs(
        flow_filter=_same_flow_filter(),
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(owners))),
    )
    over = {run.id for run in runs if _on_folder(run, options, current)}
    return [task.id for task in tasks if task.flow_run_id in over]


def _same_flow_filter() -> FlowFilter:
    """Return a Prefect filter for all runs of the current flow and of its workload flows."""
    return FlowFilter(name=FlowFilterName(any_=[str(flow_run.flow_name), WORKLOAD_FLOW]))


def _about_to_start(run: FlowRun) -> bool:
    """Return whether a run waits for its process.

    Only runs of deployments wait for a process. A subflow that is pending does not.
    """
    pending = run.state_type == StateType.PENDING
    return pending and run.parent_task_run_id is None


def _on_folder(run: FlowRun, options: OutputOptions, current: str) -> bool:
    return str(run.id) != current and _same_folder(run.parameters, options)


def _crashed_state() -> State[Any]:
    return Crashed(message=MESSAGE)


def _same_folder(parameters: dict[str, Any], options: OutputOptions) -> bool:
    # The flow of a workload has a parameter `options`, and so had all flows of earlier versions.
    given = parameters.get("options", parameters)
    known = type(options).__pydantic_fields__
    try:
        theirs = type(options).model_validate({k: v for k, v in given.items() if k in known})
    except (AttributeError, ValueError, TilewrightError):
        return False
    return theirs.folder.absolute() == options.folder.absolute()


PAGE = 200


def ended_before(seconds: float) -> list[UUID]:
    """Return the IDs of all flow runs, including subflows, that ended before a point in time.

    Args:
        seconds: Unix time in seconds.
    """
    ended = FlowRunFilterEndTime.model_validate(
        {"before_": datetime.fromtimestamp(seconds, UTC), "is_null_": False}
    )
    run_ids: list[UUID] = []
    with get_client(sync_client=True) as client:
        while page := client.read_flow_runs(
            flow_run_filter=FlowRunFilter(end_time=ended),
            sort=FlowRunSort.END_TIME_DESC,
            limit=PAGE,
            offset=len(run_ids),
        ):
            run_ids += [run.id for run in page]
    return run_ids


def delete_runs(runs: list[UUID]) -> None:
    """Delete the records of flow runs and of their tasks from Prefect's database.

    Args:
        runs: IDs of the flow runs.
    """
    with get_client(sync_client=True) as client:
        for run in runs:
            client.delete_flow_run(run)
