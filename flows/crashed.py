"""Runs whose process was killed or whose end was lost: the next run tells the server."""

from __future__ import annotations

from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.states import Crashed

from flows.options import TuningOptions
from targets.errors import TilewrightError

UNFINISHED = [StateType.RUNNING, StateType.CANCELLING]
BROKEN_OFF = [StateType.FAILED, StateType.CRASHED, StateType.CANCELLED]
MESSAGE = "its process was killed; a later run on the same folder goes on from there"


def retire_dead_runs(options: TuningOptions, current: str) -> int:
    """Mark every unfinished run on this output folder as crashed, but the `current` one, and with
    it the tasks of all runs that broke off. Whoever calls this holds the folder's ledger, so none
    of them can be alive. Returns how many."""
    with get_client(sync_client=True) as client:
        dead = [
            run.id
            for run in client.read_flow_runs(flow_run_filter=_in_states(UNFINISHED))
            if str(run.id) != current and _same_folder(run.parameters, options)
        ]
        for run_id in dead:
            client.set_flow_run_state(run_id, _crashed(), force=True)
        # Tasks report their end through a queue of the server: on a full disk it gets lost.
        tasks = client.read_task_runs(
            flow_run_filter=_in_states(BROKEN_OFF),
            task_run_filter=TaskRunFilter(
                state=TaskRunFilterState(type=TaskRunFilterStateType(any_=UNFINISHED))
            ),
        )
        for task in tasks:
            client.set_task_run_state(task.id, _crashed(), force=True)
    return len(dead)


def _in_states(states: list[StateType]) -> FlowRunFilter:
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states)))


def _crashed() -> State[Any]:
    return Crashed(message=MESSAGE)


def _same_folder(parameters: dict[str, Any], options: TuningOptions) -> bool:
    try:
        theirs = TuningOptions.model_validate(parameters.get("options"))
    except (ValueError, TilewrightError):
        return False
    return theirs.folder.absolute() == options.folder.absolute()
