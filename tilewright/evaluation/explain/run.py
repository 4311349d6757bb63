"""Explains a finished run, workload by workload."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.core.thread_pools import BLAS_ON_ONE_THREAD
from tilewright.evaluation.explain.folder import TunedFolder
from tilewright.evaluation.explain.workloads import Explained, ExplainError, explain_workload
from tilewright.targets.workload import Workload


def explain_run(
    folder: TunedFolder,
    samples: int,
    seed: int,
    progress: Callable[[int, Workload], None] = lambda place, workload: None,
) -> list[Explained]:
    """Refit the models of every workload and judge them on `samples` random configs.

    `progress` is told the place (from 0) and the workload that is next. Raises `ExplainError` if
    there is nothing to explain or to judge on, and `FolderError` if trials are missing.
    """
    if samples < 1:
        raise ExplainError(f"--samples {samples}: judge the models on at least 1 config")
    explained = []
    with BLAS_ON_ONE_THREAD:  # matrices are small: threads would wait for each other
        for place, workload in enumerate(folder.workloads):
            progress(place, workload)
            explained.append(explain_workload(folder, workload, samples, seed))
    return explained
