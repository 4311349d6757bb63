"""Stores an exactly solved co-design problem ("truth") in a folder, in resumable parts.

`truth.json` describes the problem, each file in `parts/` has the results of some machines, and
`truth.parquet` has the results of all machines. Finished parts are kept; damaged parts are computed
again.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.codesign.exact_solver import Listing, TruthError, TruthOptions, parts_of, rows_of
from tilewright.core.files import (
    Json,
    as_object,
    as_text,
    canonical,
    digest,
    read_json,
    read_plain,
    write_atomically,
)
from tilewright.hardware_search.pareto import Points
from tilewright.hardware_search.problem import CodesignProblem
from tilewright.tuning.open_trials import own_folder

ABOUT, TABLE = "truth.json", "truth.parquet"
_KEY = b"tilewright.truth"
_NUMBERS = ("machine", "area", "mhz", "best_cycles", "bound_cycles", "config", "schedules", "tried")


@dataclass(frozen=True)
class PlannedMachines:
    """Event: a build begins. Holds the number of machines, and how many are already solved."""

    machines: int
    kept: int


@dataclass(frozen=True)
class PartDone:
    """Event: a part of the machines is solved. Holds the number of its machines."""

    machines: int


@dataclass(frozen=True)
class Damaged:
    """Event: a damaged file is computed again. Holds its path and the reason."""

    path: Path
    reason: str


Listener = Callable[[PlannedMachines | PartDone | Damaged], None]


def ignore(event: PlannedMachines | PartDone | Damaged) -> None:
    """Ignore an event."""


def solved_rows(problem: CodesignProblem, machines: range, options: TruthOptions) -> Listing:
    """Solve the layers of some machines, and return a table by column, with one row per layer.

    Args:
        problem: the co-design problem.
        machines: indices into `problem.hardware.points`.
        options: effort per layer.

    Errors of `benchmarks.codesign.exact_solver.solve` are passed on.
    """
    rows: Listing = {}
    for machine in machines:
        for name, values in rows_of(problem, machine, options).items():
            rows.setdefault(name, []).extend(values)
    return rows


def build_truth(folder: Path, options: TruthOptions, listen: Listener = ignore) -> Truth:
    """Solve the machines that are missing in a folder.

    Args:
        folder: the folder.
        options: the problem, and the effort per layer.
        listen: called with each event.

    Returns:
        The complete truth.

    Raises:
        TruthError: the folder contains the truth of other options or of another version of
            Tilewright.
        RunInUse: another process builds in this folder.
        OSError: a file cannot be read or written.

    Errors of `TruthOptions.problem` are passed on.
    """
    problem = options.problem()
    with own_folder(folder):
        key = _begin_truth(folder, options, problem)
        held = {part: _read_part(folder, part, key, listen) for part in parts_of(problem)}
        done = sum(len(part) for part, table in held.items() if table is not None)
        listen(PlannedMachines(len(problem.hardware.points), done))
        tables = []
        for part, table in held.items():
            if table is None:
                data = _encode(pa.table(solved_rows(problem, part, options)), key)
                write_atomically(_path(folder, part), data)
                table = _decode(data, key)
                listen(PartDone(len(part)))
            tables.append(table)
        write_atomically(folder / TABLE, _encode(pa.concat_tables(tables), key))
        return read_truth(folder)


def _begin_truth(folder: Path, options: TruthOptions, problem: CodesignProblem) -> str:
    """Write the description of the truth unless it exists, and return its digest."""
    about: dict[str, Json] = {
        "options": options.to_json(),
        "fingerprint": problem.hardware.base.fingerprint,
        "machines": len(problem.hardware.points),
    }
    data, path = canonical(about), folder / ABOUT
    if not path.exists():
        if (folder / TABLE).exists():
            raise TruthError(
                f"{folder} contains a truth that was built elsewhere; choose another folder"
            )
        write_atomically(path, data + b"\n")
    elif read_plain(path).strip() != data:
        raise TruthError(
            f"{folder} contains a truth for other options, or of another version of this "
            "program; choose another folder"
        )
    return digest(data)


def _path(folder: Path, part: range) -> Path:
    return folder / "parts" / f"{part.start:05d}.parquet"


def _read_part(folder: Path, part: range, key: str, listen: Listener) -> pa.Table | None:
    path = _path(folder, part)
    try:
        table = _decode(read_plain(path), key)
        machines = set(table.column("machine").to_pylist())
        if not machines <= set(part):
            raise ValueError("it belongs to other machines")
    except FileNotFoundError:
        return None
    except ValueError as error:
        listen(Damaged(path, str(error)))
        return None
    return table


def _encode(table: pa.Table, key: str) -> bytes:
    buffer = io.BytesIO()
    table = table.replace_schema_metadata({_KEY: key})
    pq.write_table(
        table, buffer, compression="zstd", write_page_checksum=True, write_statistics=False
    )
    return buffer.getvalue()


def _decode(data: bytes, key: str) -> pa.Table:
    """Decode a table that `_encode` wrote.

    Raises:
        ValueError: the data was not written by `_encode` with this key.
    """
    try:
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it is not a Parquet file, or damaged ({error!s:.80})") from None
    if (table.schema.metadata or {}).get(_KEY, b"").decode(errors="replace") != key:
        raise ValueError("it belongs to another truth")
    return table


@dataclass(frozen=True)
class Truth:
    """An exactly solved co-design problem. `table` has one row per layer and machine."""

    options: TruthOptions
    table: pd.DataFrame

    @property
    def areas(self) -> NDArray[np.float64]:
        """Chip area of each machine, relative to the stock machine; shape (machines,)."""
        return self.table.groupby("machine")["area"].first().to_numpy(np.float64)

    def seconds(self, cycles: str, networks: tuple[str, ...] | None = None) -> NDArray[np.float64]:
        """Return the seconds of one inference of each network, summed over networks.

        A machine on which a layer has no schedule has infinite seconds.

        Args:
            cycles: column of the table, "best_cycles" or "bound_cycles".
            networks: names of the networks; by default all networks of the truth.

        Returns:
            Seconds, float64 array of shape (machines,).
        """
        table, total = self.table, np.zeros(self.table["machine"].nunique())
        for name in networks or self.networks:
            calls = table[f"calls_{name}"]
            spent = calls * table[cycles].where(table[cycles] >= 0, np.inf) / (table["mhz"] * 1e6)
            cpu = table.groupby("machine")[f"cpu_seconds_{name}"].first()
            here = spent.where(calls > 0, 0.0).groupby(table["machine"]).sum() + cpu
            total += here.to_numpy(np.float64)
        return total

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the networks, as they appear in column names."""
        start = "cpu_seconds_"
        return tuple(name[len(start) :] for name in self.table.columns if name.startswith(start))

    def points(
        self, cycles: str = "best_cycles", networks: tuple[str, ...] | None = None
    ) -> Points:
        """Return area and latency of the machines that can run all layers, shape (machines, 2)."""
        result = np.stack([self.areas, self.seconds(cycles, networks)], axis=1)
        return result[np.isfinite(result).all(axis=1)]

    def reference(self, networks: tuple[str, ...] | None = None) -> tuple[float, float]:
        """Return the reference point of hypervolumes: the allowed area and the largest latency."""
        return self.options.area, float(self.points(networks=networks)[:, 1].max())


def read_truth(folder: Path) -> Truth:
    """Read the truth that was built in a folder.

    Raises:
        TruthError: there is no finished truth, or it is damaged.
        UnsafeFile: a file is no plain file.
        OSError: a file cannot be read.
    """
    try:
        data = read_plain(folder / ABOUT).strip()
        options = TruthOptions.from_json(as_object(read_json(as_text(data.decode())))["options"])
        table = _decode(read_plain(folder / TABLE), digest(data)).to_pandas()
        missing = [name for name in _NUMBERS if not pd.api.types.is_numeric_dtype(table.get(name))]
        if missing:
            raise ValueError(f"it has missing numbers in {', '.join(missing)}")
    except FileNotFoundError:
        raise TruthError(f"{folder} contains no finished truth; build it first") from None
    except (ValueError, LookupError) as error:
        raise TruthError(
            f"the truth in {folder} cannot be read ({error}); build it again"
        ) from None
    return Truth(options, table)
