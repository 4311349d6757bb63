"""Reads the results of an earlier run from MLflow."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mlflow.exceptions import MlflowException

from tilewright.evaluation.diff import DiffError, Side, read_side
from tilewright.tasks import tracking
from tilewright.tuning.output_dir import SCHEDULES, SUMMARY


def side_of_run(run_id: str) -> Side:
    """Read a finished MLflow run of a network from its logged files, as one side of a comparison.

    Args:
        run_id: ID of the run.

    Raises:
        DiffError: the run does not exist, or has not finished successfully.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in (SUMMARY, SCHEDULES):
            try:
                tracking.fetch_file(run_id, name, Path(folder))
            except (MlflowException, OSError) as error:
                raise DiffError(
                    f"the MLflow run {run_id} has no {name} ({str(error)[:200]}); give a "
                    "network's run that has ended, or an output directory"
                ) from None
        return read_side(Path(folder), f"MLflow run {run_id}")
