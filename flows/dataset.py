"""Builds a dataset, as consecutive steps: stores a plan, measures missing parts, writes the index.

make_plan → measure_part, a file of rows after the other → log_dataset
"""

from __future__ import annotations

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
    part_record,
    rows_done,
    store_plan,
)
from tilewright.evaluation.datasets.metadata import DatasetMetadata
from tilewright.evaluation.datasets.plan import DatasetOptions, make_plan
from tilewright.search import LocalRunner
from tilewright.tuning.open_trials import alone


def build_dataset(run: LocalRunner, folder: Path, options: DatasetOptions) -> DatasetMetadata:
    """Make what the folder lacks of the dataset; what is there stays as it is, byte for byte.

    Raises `DatasetError` for a folder that holds another dataset, or a build begun with another
    version of this program, `RunInUse` if another command builds there, and `OSError`.
    """
    with alone(folder):
        plan = kept_plan(folder, options)
        if plan is None:
            plan = store_plan(folder, run(make_plan, options).value)
        finished = finished_files(folder)
        parts = {part: kept_part(folder, plan, part, finished) for part in plan.parts}
        kept = sum(part.rows for part, found in parts.items() if found is not None)
        run.emit(PlannedFile(plan.rows, len(plan.hardware), len(plan.workloads), kept))
        for part, found in parts.items():
            if found is None:
                data = run(measure_part, plan, part, partial(rows_done, run.emit)).value
                write_atomically(folder / plan.path(part), data)
                parts[part] = part_record(plan, part, data)
        held = [found for found in parts.values() if found is not None]
        return run.call(log_dataset, folder, plan, held)
