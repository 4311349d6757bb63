"""Runner that executes the steps of building a dataset as Prefect tasks.

The first step makes a plan, and each further step measures one file of rows. The results are not
cached, because the dataset's folder holds the finished files. Prefect searches the arguments of a
task for results of other tasks. A plan has thousands of entries, so this search is turned off for
the tasks here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact

from tilewright.evaluation.datasets.build import measure_part, receive_part
from tilewright.evaluation.datasets.folder import DatasetMetadata
from tilewright.evaluation.datasets.plan import make_plan
from tilewright.reports.datasets import dataset_line
from tilewright.reports.markdown import escape_text
from tilewright.search.events import Listener
from tilewright.tasks.tracked_runner import Step, TrackedRunner, as_task


class DatasetRunner(TrackedRunner):
    """Runner that executes the steps of building a dataset as Prefect tasks."""

    def __init__(self, emit: Listener) -> None:
        own: dict[Step, Step] = {
            make_plan: as_task(make_plan, "plan of {options.rows} rows"),
            measure_part: as_task(measure_part, _part_title),
            receive_part: as_task(receive_part, _part_title),
        }
        super().__init__(emit, own)


def _part_title(parameters: Mapping[str, Any]) -> str:
    plan, part = parameters["plan"], parameters["part"]
    return f"{plan.hardware[part.hardware].name}, {part.number}: {part.rows} rows"


def say_built(about: DatasetMetadata, out: Path) -> None:
    """Create a Prefect artifact that reports the folder, size and digest of the dataset.

    Args:
        about: metadata of the dataset.
        out: folder of the dataset.
    """
    line = escape_text(dataset_line(about, out))
    create_markdown_artifact(key="dataset", markdown=line, description=escape_text(str(out)))
