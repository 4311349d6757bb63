"""Performs the steps of building a dataset as Prefect tasks: a plan, and a file of rows after the
other.

`tasks.artifact_store` caches none of it: what is finished lies in the dataset's own folder. A plan
has thousands of cells: Prefect does not search them for futures.
"""

from __future__ import annotations

from pathlib import Path

from prefect.artifacts import create_markdown_artifact

from tilewright.evaluation.datasets.build import measure_part
from tilewright.evaluation.datasets.metadata import DatasetMetadata
from tilewright.evaluation.datasets.plan import DatasetPlan, PlanPart, make_plan
from tilewright.evaluation.datasets.rows import Progress
from tilewright.reports.datasets import dataset_line
from tilewright.reports.markdown import plain
from tilewright.search.events import Listener
from tilewright.tasks.cached_task import step, unsearched
from tilewright.tasks.tracked_runner import TrackedRunner


class DatasetRunner(TrackedRunner):
    """Performs the steps of building a dataset."""

    def __init__(self, emit: Listener) -> None:
        super().__init__(
            emit, {make_plan: step("plan of {options.rows} rows")(make_plan), measure_part: _part}
        )


def _part(plan: DatasetPlan, part: PlanPart, tell: Progress) -> bytes:
    title = f"{plan.hardware[part.hardware].name}, {part.number}"
    return _measure_part(title, part.rows, unsearched(plan), unsearched(part), unsearched(tell))


@step("{title}: {rows} rows")
def _measure_part(
    title: str, rows: int, plan: DatasetPlan, part: PlanPart, tell: Progress
) -> bytes:
    """Draw, lower and measure the rows of a file."""
    return measure_part(plan, part, tell)


def say_built(about: DatasetMetadata, out: Path) -> None:
    """How large the dataset is, as an artifact of the flow run."""
    line = plain(dataset_line(about, out))
    create_markdown_artifact(key="dataset", markdown=line, description=plain(str(out)))
