"""Deletes runs of a deployment that a server still lists as waiting from an earlier time."""

from __future__ import annotations

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound


def drop_waiting_runs(deployment: str) -> int:
    """Delete them, and say how many there were: records that came with a folder from a stranger
    may hold some, with parameters of their choice. Those of the schedule come back by themselves.

    `deployment` is the flow's name and its own, with a slash between.
    """
    waiting = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
    with get_client(sync_client=True) as client:
        try:
            of = DeploymentFilterId(any_=[client.read_deployment_by_name(deployment).id])
        except ObjectNotFound:
            return 0
        dropped = 0
        while runs := client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=waiting), deployment_filter=DeploymentFilter(id=of)
        ):
            for run in runs:
                client.delete_flow_run(run.id)
                dropped += not run.auto_scheduled
    return dropped
