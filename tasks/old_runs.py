"""Finds and deletes the records that Prefect's server keeps of runs that ended long ago."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterEndTime
from prefect.client.schemas.sorting import FlowRunSort

PAGE = 200


def ended_before(seconds: float) -> list[UUID]:
    """The runs, subflows among them, that ended before a time in seconds of the epoch."""
    ended = FlowRunFilterEndTime.model_validate(
        {"before_": datetime.fromtimestamp(seconds, UTC), "is_null_": False}
    )
    found: list[UUID] = []
    with get_client(sync_client=True) as client:
        while page := client.read_flow_runs(
            flow_run_filter=FlowRunFilter(end_time=ended),
            sort=FlowRunSort.END_TIME_DESC,
            limit=PAGE,
            offset=len(found),
        ):
            found += [run.id for run in page]
    return found


def delete_runs(runs: list[UUID]) -> None:
    """Delete these records, with those of their tasks."""
    with get_client(sync_client=True) as client:
        for run in runs:
            client.delete_flow_run(run)
