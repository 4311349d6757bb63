"""Complete tables: what every config of a space does on some hardware, so that tuners can be judged
against the true optimum and replayed in seconds."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from targets.base import STATUSES, Configs, Knob, Space
from targets.errors import TilewrightError
from targets.workload import Workload

KNOB_COLUMNS = ("tile_b", "tile_h", "tile_w", "tile_ci", "tile_co", "oc_nthread", "h_nthread")


class TableError(TilewrightError):
    """A table that cannot be read as one."""


@dataclass(frozen=True)
class Table:
    """One row a config of `space`, ascending by `flat` index. `failures` names why a config did not
    compile ("" if it did), `cycles` is -1 and `seconds` NaN where the status is not `valid`;
    `hidden` (rows, hidden_names) is what compiling revealed, NaN where it failed."""

    name: str
    workload: Workload
    space: Space
    flat: NDArray[np.int64]
    status: NDArray[np.object_]
    failures: NDArray[np.object_]
    reasons: NDArray[np.object_]
    cycles: NDArray[np.int64]
    seconds: NDArray[np.float64]
    hidden: NDArray[np.float64]
    hidden_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.flat)

    @property
    def optimum_cycles(self) -> int:
        """The fastest valid config's cycles. Raises `TableError` if none is valid."""
        valid = self.cycles[self.status == "valid"]
        if not len(valid):
            raise TableError(f"no config of {self.name} is valid: leave it out, it has no optimum")
        return int(valid.min())

    @cached_property
    def digest(self) -> str:
        """Content hash of all that a tuner can see of it."""
        hasher = hashlib.sha256("\0".join([self.workload.id, *self.hidden_names]).encode())
        for numbers in (self.flat, self.cycles, self.seconds, self.hidden):
            hasher.update(np.ascontiguousarray(numbers).tobytes())
        for words in (self.status, self.failures, self.reasons):
            hasher.update("\0".join(words).encode())
        return hasher.hexdigest()[:16]

    def at(self, configs: Configs) -> NDArray[np.int64]:
        """Row of each config. Raises `TableError` if one is not listed."""
        flat = self.space.ravel(configs)
        if self.space.listed is None:
            return flat
        rows = np.minimum(np.searchsorted(self.flat, flat), len(self.flat) - 1)
        if len(flat) and not np.array_equal(self.flat[rows], flat):
            raise TableError(f"table {self.name} does not list every config that was asked for")
        return np.asarray(rows, dtype=np.int64)


def read_stack_table(
    path: Path,
    *,
    reference: Path | None = None,
    cycles: str = "cycles_pynq",
    clock_mhz: float = 100,
) -> Table:
    """A table of the stock TVM+VTA stack (`C4.csv.gz`), the layer's shape from `reference.json`
    beside it. Rows may be missing: the space is then what the table lists. No hidden features.
    Raises `TableError`."""
    name = path.name.split(".")[0]
    workload = _reference_workload(reference or path.with_name("reference.json"), path, name)
    columns = _read_columns(path, cycles)
    knobs = tuple(Knob(k, tuple(sorted(map(int, columns[k].unique())))) for k in KNOB_COLUMNS)
    product = Space("template", knobs)
    indices = [np.searchsorted(knob.values, columns[knob.name]) for knob in knobs]
    flat = product.ravel(np.stack(indices, axis=1).astype(np.int32))
    order = np.argsort(flat, kind="stable")
    flat, columns = flat[order], columns.iloc[order]
    if len(np.unique(flat)) < len(flat):
        raise TableError(f"{path} lists a config twice; remove one of the rows")
    complete = len(flat) == product.size
    status = columns["status"].to_numpy(dtype=object)
    count = columns[cycles].to_numpy(dtype=np.int64)
    compiled = status != "compile_error"
    return Table(
        name=name,
        workload=workload,
        space=product if complete else Space("template", knobs, tuple(map(int, flat))),
        flat=flat,
        status=status,
        failures=np.where(compiled, "", columns["failure"].to_numpy(dtype=object)),
        reasons=np.where(
            status == "valid", "", (columns["failure"] + ": " + columns["reason"]).to_numpy(object)
        ),
        cycles=count,
        seconds=np.where(count >= 0, count / (clock_mhz * 1e6), np.nan),
        hidden=np.empty((len(flat), 0)),
        hidden_names=(),
    )


def _read_columns(path: Path, cycles: str) -> pd.DataFrame:
    """The columns that matter, checked; -1 cycles where a config is not valid."""
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values={cycles: [""]})
        columns = frame[[*KNOB_COLUMNS, "status", "failure", "reason", cycles]].copy()
        columns[list(KNOB_COLUMNS)] = columns[list(KNOB_COLUMNS)].astype("int64")
        columns[cycles] = columns[cycles].astype("float64").fillna(-1).astype("int64")
    except (OSError, ValueError, KeyError, EOFError, zlib.error) as error:
        raise TableError(
            f"{path} is no table of a VTA stack ({error}); expected a CSV with the columns "
            f"{', '.join(KNOB_COLUMNS)}, status, failure, reason, {cycles}"
        ) from None
    if columns.empty:
        raise TableError(f"{path} lists no config; give a table with at least one row")
    if unknown := set(columns["status"]) - set(STATUSES):
        raise TableError(
            f"{path}: unknown status '{sorted(map(str, unknown))[0]}'; known: {', '.join(STATUSES)}"
        )
    valid = columns["status"] == "valid"
    if (columns.loc[valid, cycles] <= 0).any():
        raise TableError(f"{path}: a valid config has no {cycles}; give every valid row its cycles")
    columns.loc[~valid, cycles] = -1
    return columns


def _reference_workload(path: Path, table: Path, name: str) -> Workload:
    if not table.is_file():
        raise TableError(f"there is no file {table}; give the path of a table")
    try:
        layers = {entry["layer"]: entry for entry in json.loads(path.read_text())}
        layer = layers[name]
        return Workload(
            operator="conv2d", batch=1, in_channels=layer["in_channels"], height=layer["height"],
            width=layer["width"], out_channels=layer["out_channels"], kernel_h=layer["kernel"],
            kernel_w=layer["kernel"], stride_h=layer["stride"], stride_w=layer["stride"],
            pad_top=layer["pad"], pad_left=layer["pad"], pad_bottom=layer["pad"],
            pad_right=layer["pad"],
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        raise TableError(
            f"{path} does not describe layer '{name}'; a table needs a reference.json beside it "
            "with the layer's height, width, in_channels, out_channels, kernel, stride and pad"
        ) from None
