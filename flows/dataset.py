"""Pipeline that builds a dataset: store a plan, measure the missing parts, write `dataset.json`.

make_plan → measure_part, once per part → log_dataset

A part is one file with rows of the dataset. With a cluster, its workers measure the parts, and
`receive_part` replaces `measure_part`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tilewright.core.files import write_atomically
from tilewright.evaluation.datasets.build import (
    PlannedFile,
    finished_files,
    kept_part,
    kept_plan,
    log_dataset,
    measure_part,
    measure_parts_on,
    part_record,
    receive_part,
    rows_done,
    store_plan,
)
from tilewright.evaluation.datasets.folder import DatasetMetadata
from tilewright.evaluation.datasets.options import DatasetOptions
from tilewright.evaluation.datasets.plan import DatasetPlan, PlanPart, make_plan
from tilewright.evaluation.datasets.rows import Progress
from tilewright.search import LocalRunner
from tilewright.tuning.open_trials import own_folder


def build_dataset(
    run: LocalRunner, folder: Path, options: DatasetOptions, cluster: str = ""
) -> DatasetMetadata:
    """Build the missing files of a dataset. Existing files are not changed.

    Args:
        run: runner that executes the steps.
        folder: folder of the dataset.
        options: contents of the dataset.
        cluster: address of the Dask cluster whose workers measure the rows, as in `--cluster`; ""
            to measure in this process. The rows are the same in both cases.

    Returns:
        Metadata of the complete dataset.

    Raises:
        DatasetError: the folder contains another dataset, or a build that another version started.
        RunInUse: another command is building in this folder.
        ClusterError: the cluster cannot be used.
        OSError: a file cannot be written.
    """
    with own_folder(folder):
        plan = kept_plan(folder, options)
        if plan is None:
            plan = store_plan(folder, run(make_plan, options))
        finished = finished_files(folder)
        parts = {part: kept_part(folder, plan, part, finished) for part in plan.parts}
        kept = sum(part.rows for part, result in parts.items() if result is not None)
        run.emit(PlannedFile(plan.rows, len(plan.hardware), len(plan.workloads), kept))
        missing = [part for part, result in parts.items() if result is None]
        tell = partial(rows_done, run.emit)
        for part, data in _measure_parts(run, plan, missing, tell, cluster):
            write_atomically(folder / plan.path(part), data)
            parts[part] = part_record(plan, part, data)
        held = [part for part in parts.values() if part is not None]
        return run.call(log_dataset, folder, plan, held)


def _measure_parts(
    run: LocalRunner, plan: DatasetPlan, missing: list[PlanPart], tell: Progress, cluster: str
) -> Iterator[tuple[PlanPart, bytes]]:
    """Measure the missing parts of a dataset, and yield each part with the content of its file.

    In this process, the parts come in the order of the plan. On a cluster, they come in the order
    in which they finish.

    Args:
        run: runner that executes the steps.
        plan: plan of the dataset.
        missing: parts that are not built yet.
        tell: function that receives the progress.
        cluster: address of the Dask cluster, or "" for this process.
    """
    if not cluster:
        for part in missing:
            yield part, run(measure_part, plan, part, tell)
    else:
        for part, data in measure_parts_on(cluster, plan, missing):
            yield part, run(receive_part, plan, part, data, tell)
