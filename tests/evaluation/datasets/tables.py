"""Training tables with a few invented tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.models.transfer.training_data import TrainingTable
from tilewright.targets.features import Features


def table_of(
    task: Sequence[int],
    log_latency: Sequence[float],
    workload: Sequence[int] | None = None,
    hardware: Sequence[int] | None = None,
) -> TrainingTable:
    """Return a training table with one feature column, which holds the row number."""
    tasks = np.asarray(task, np.int64)
    return TrainingTable(
        Features.from_names(np.arange(len(tasks), dtype=np.float64)[:, None], ["number"]),
        np.asarray(log_latency, np.float64),
        tasks,
        tasks if workload is None else np.asarray(workload, np.int64),
        tasks if hardware is None else np.asarray(hardware, np.int64),
    )
