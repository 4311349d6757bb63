"""Flow runs whose process was killed: the next run on their folder tells the server."""

from __future__ import annotations

from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
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
MESSAGE = "its process was killed; a later run on the same folder goes on from there"


def retire_dead_runs(options: TuningOptions, current: str) -> int:
    """Mark every unfinished run on this output folder as crashed, but the `current` one. Whoever
    calls this holds the folder's ledger, so none of them can be alive. Returns how many."""
    unfinished = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=UNFINISHED))
    )
    with get_client(sync_client=True) as client:
        dead = [
            run.id
            for run in client.read_flow_runs(flow_run_filter=unfinished)
            if str(run.id) != current and _same_folder(run.parameters, options)
        ]
        state: State[Any] = Crashed(message=MESSAGE)
        for run_id in dead:
            tasks = client.read_task_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])),
                task_run_filter=TaskRunFilter(
                    state=TaskRunFilterState(type=TaskRunFilterStateType(any_=UNFINISHED))
                ),
            )
            for task in tasks:
                client.set_task_run_state(task.id, state, force=True)
            client.set_flow_run_state(run_id, state, force=True)
    return len(dead)


def _same_folder(parameters: dict[str, Any], options: TuningOptions) -> bool:
    try:
        theirs = TuningOptions.model_validate(parameters.get("options"))
    except (ValueError, TilewrightError):
        return False
    return theirs.folder.absolute() == options.folder.absolute()
