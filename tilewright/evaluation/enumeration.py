"""Measures every config of a workload's search space and writes the results to a table."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.core.files import write_atomically
from tilewright.targets.base import Lowered, Measurements, Space, Target
from tilewright.targets.capabilities import Enumerates, Latency, capability
from tilewright.targets.workload import Workload

SUFFIXES = (".csv", ".csv.gz", ".parquet")


class EnumerationError(TilewrightError):
    """Error for a target that cannot enumerate its space, or a table file of unknown format."""


@dataclass(frozen=True)
class EnumeratedSpace:
    """Measurements of every config of a search space.

    Attributes:
        table: one row per config, in the order of the flat index; see `frame` for the columns.
        best: latency of the fastest valid config; None if no config is valid.
        seconds: wall-clock time that lowering and measuring took.
    """

    table: pd.DataFrame
    best: Latency | None
    seconds: float

    @property
    def valid(self) -> int:
        """Number of valid configs."""
        return int((self.table["status"] == "valid").sum())


def enumerate_space(
    target: Target, workload: Workload, progress: Callable[[int], None] = lambda configs: None
) -> EnumeratedSpace:
    """Lower and measure every config of a workload's search space.

    Args:
        target: a target that can enumerate its space, which only simulated targets can.
        workload: the workload.
        progress: callback that gets the number of configs that were finished since its last call.

    Returns:
        The measurements of all configs.

    Raises:
        EnumerationError: the target cannot enumerate its space.
        WorkloadError: the target has no space for the workload.
    """
    enumerates = capability(target, Enumerates)
    if enumerates is None:
        raise EnumerationError(
            f"{target.name} cannot enumerate schedules; choose a simulated target"
        )
    start = time.perf_counter()
    lowered, measured = enumerates.enumerate(workload, progress)
    seconds = time.perf_counter() - start
    return EnumeratedSpace(
        frame(target.space(workload), lowered, measured), _best_latency(measured), seconds
    )


def _best_latency(measured: Measurements) -> Latency | None:
    if not measured.valid.any():
        return None
    row = int(np.argmin(np.where(measured.valid, measured.latency, np.inf)))
    return Latency(float(measured.seconds[row]), int(measured.cycles[row]))


def frame(space: Space, lowered: Lowered, measured: Measurements) -> pd.DataFrame:
    """Return the measurements of a space's configs as a table with one row per config.

    The columns are: `index` (flat index of the config), one column per knob with the knob's value,
    `status`, `failure` (error of the compiler), `reason` (of an invalid config), `cycles`, and one
    column per performance counter. Unknown cycles and counters are missing values.

    Args:
        space: the search space.
        lowered: the lowered configs.
        measured: the measurements of the same configs.

    Returns:
        The table, in the order of `lowered.configs`.
    """
    values = space.values(lowered.configs)
    columns: dict[str, object] = {"index": space.ravel(lowered.configs)}
    columns |= {knob.name: values[:, k] for k, knob in enumerate(space.knobs)}
    columns |= {
        "status": measured.status,
        "failure": lowered.failures,
        "reason": measured.reason,
        "cycles": _known_numbers(measured.cycles),
    }
    columns |= {name: _known_numbers(numbers) for name, numbers in measured.counters.items()}
    return pd.DataFrame(columns)


def check_table_name(path: Path) -> None:
    """Check that a file name has a suffix in `SUFFIXES`. Raise `EnumerationError` if not."""
    if not path.name.endswith(SUFFIXES):
        raise EnumerationError(f"{path}: the file name must end in {', '.join(SUFFIXES)}")


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV, compressed CSV or Parquet, depending on the suffix of the file name.

    Equal tables give equal bytes.

    Args:
        path: the file; its name must end in one of `SUFFIXES`.
        table: the table.

    Raises:
        EnumerationError: the suffix is not in `SUFFIXES`.
        OSError: the file cannot be written.
    """
    check_table_name(path)
    buffer = io.BytesIO()
    if path.name.endswith(".parquet"):
        table.to_parquet(buffer, index=False)
    else:
        zipped = {"method": "gzip", "mtime": 0} if path.name.endswith(".gz") else None
        table.to_csv(buffer, index=False, compression=zipped)
    write_atomically(path, buffer.getvalue())


def _known_numbers(numbers: NDArray[np.int64]) -> pd.Series[int]:
    return pd.Series(numbers, dtype="Int64").mask(numbers < 0)
