"""Tabulates the whole space of a workload."""

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
    """A table that cannot be made as asked."""


@dataclass(frozen=True)
class EnumeratedSpace:
    """A space that was lowered and measured, a row a config in the order of the flat index (see
    `frame`), the fastest valid one, if there is any, and the seconds that took."""

    table: pd.DataFrame
    best: Latency | None
    seconds: float

    @property
    def valid(self) -> int:
        """How many configs are."""
        return int((self.table["status"] == "valid").sum())


def enumerate_space(
    target: Target, workload: Workload, progress: Callable[[int], None] = lambda configs: None
) -> EnumeratedSpace:
    """Lower and measure every config. `progress` is told the number of configs done since its last
    call. Raises `EnumerationError` if the target cannot, `WorkloadError` if it has no space for the
    workload."""
    enumerates = capability(target, Enumerates)
    if enumerates is None:
        raise EnumerationError(f"{target.name} cannot enumerate; choose a target that is simulated")
    start = time.perf_counter()
    lowered, measured = enumerates.enumerate(workload, progress)
    seconds = time.perf_counter() - start
    return EnumeratedSpace(
        frame(target.space(workload), lowered, measured), _best(measured), seconds
    )


def _best(measured: Measurements) -> Latency | None:
    if not measured.valid.any():
        return None
    row = int(np.argmin(np.where(measured.valid, measured.latency, np.inf)))
    return Latency(float(measured.seconds[row]), int(measured.cycles[row]))


def frame(space: Space, lowered: Lowered, measured: Measurements) -> pd.DataFrame:
    """Columns: index, one a knob (its value), status, failure, reason, cycles, counters. Numbers
    are missing where a schedule has none."""
    values = space.values(lowered.configs)
    columns: dict[str, object] = {"index": space.ravel(lowered.configs)}
    columns |= {knob.name: values[:, k] for k, knob in enumerate(space.knobs)}
    columns |= {
        "status": measured.status,
        "failure": lowered.failures,
        "reason": measured.reason,
        "cycles": _known(measured.cycles),
    }
    columns |= {name: _known(numbers) for name, numbers in measured.counters.items()}
    return pd.DataFrame(columns)


def check_table_name(path: Path) -> None:
    """Raises `EnumerationError` unless `path` ends in one of `SUFFIXES`."""
    if not path.name.endswith(SUFFIXES):
        raise EnumerationError(f"{path}: write a table as {', '.join(SUFFIXES)}")


def write_table(path: Path, table: pd.DataFrame) -> None:
    """In the format that the name asks for; equal tables give equal bytes. Raises
    `EnumerationError` for another suffix, and `OSError`."""
    check_table_name(path)
    buffer = io.BytesIO()
    if path.name.endswith(".parquet"):
        table.to_parquet(buffer, index=False)
    else:
        zipped = {"method": "gzip", "mtime": 0} if path.name.endswith(".gz") else None
        table.to_csv(buffer, index=False, compression=zipped)
    write_atomically(path, buffer.getvalue())


def _known(numbers: NDArray[np.int64]) -> pd.Series[int]:
    return pd.Series(numbers, dtype="Int64").mask(numbers < 0)
