"""Reads measurement tables that were recorded with the real TVM + VTA stack, and replays them.

The tables contain schedules of the template space. A replay target answers from the tables instead
of measuring.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from tilewright.targets.base import STATUSES, Configs, Knob, Space
from tilewright.targets.features import Features
from tilewright.targets.replay import MeasurementTable, ReplayTarget, Spent, TableError
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload

SECONDS = ("build_seconds", "run_seconds")
"""Optional columns of a table with the times in seconds for building and for running a config."""
MOST_TEXT = 64 << 20
"""Maximum size of the text of a table in bytes. pandas needs about ten times as much memory to read
the text."""
MOST_VALUE, MOST_CYCLES = 1 << 31, 1 << 53
KNOB_COLUMNS = ("tile_b", "tile_h", "tile_w", "tile_ci", "tile_co", "oc_nthread", "h_nthread")


def read_stack_table(
    path: Path,
    *,
    reference: Path | None = None,
    cycles: str = "cycles_pynq",
    clock_mhz: float = 100,
) -> MeasurementTable:
    """Read a measurement table of the stock TVM + VTA stack, such as `C4.csv.gz`.

    If the table lacks configs of the full space, the schedule space consists of the configs that it
    lists. The table has no hidden features.

    Args:
        path: the table.
        reference: JSON file with the shape of the layer; by default `reference.json` next to the
            table.
        cycles: name of the column with the cycles.
        clock_mhz: clock frequency in MHz, which converts cycles to seconds.

    Raises:
        TableError: the table or the reference is invalid.
    """
    name = path.name.split(".")[0]
    workload = _reference_workload(reference or path.with_name("reference.json"), path, name)
    columns = _read_columns(path, cycles)
    knobs = tuple(Knob(k, tuple(sorted(map(int, columns[k].unique())))) for k in KNOB_COLUMNS)
    if math.prod(len(knob.values) for knob in knobs) > MOST_CYCLES:
        raise TableError(f"{path} lists too many values per knob; give a table of a single layer")
    product = Space("template", knobs)
    indices = [np.searchsorted(knob.values, columns[knob.name]) for knob in knobs]
    flat = product.ravel(np.stack(indices, axis=1).astype(np.int32))
    order = np.argsort(flat, kind="stable")
    flat, columns = flat[order], columns.iloc[order]
    if len(np.unique(flat)) < len(flat):
        raise TableError(f"{path} contains a config twice; remove one of the rows")
    complete = len(flat) == product.size
    status = columns["status"].to_numpy(dtype=object)
    count = columns[cycles].to_numpy(dtype=np.int64)
    compiled = status != "compile_error"
    return MeasurementTable(
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
        hidden=Features.empty(len(flat)),
        spent=_spent(columns),
    )


def _spent(columns: pd.DataFrame) -> Spent | None:
    """Return the build time and run time of each config, or None if the table lacks them."""
    if not set(SECONDS) <= set(columns.columns):
        return None
    build, run = (columns[name].to_numpy(dtype=np.float64) for name in SECONDS)
    return Spent(np.nan_to_num(build), np.nan_to_num(run))


def _read_columns(path: Path, cycles: str) -> pd.DataFrame:
    """Read the relevant columns of a CSV table of recorded measurements, and check them.

    Args:
        path: the table.
        cycles: name of the column with the cycles.

    Returns:
        One row per config. The cycles of configs that are not valid are -1.

    Raises:
        TableError: a column is missing or invalid.
    """
    try:
        wanted = (*KNOB_COLUMNS, "status", "failure", "reason", cycles)
        empty = {name: [""] for name in (cycles, *SECONDS)}
        frame = pd.read_csv(
            io.BytesIO(_text(path)), keep_default_na=False, na_values=empty,
            usecols=lambda name: name in (*wanted, *SECONDS), low_memory=False,
        )  # fmt: skip
        spent = [name for name in SECONDS if name in frame.columns]
        columns = frame[[*wanted, *spent]].copy()
        columns[spent] = columns[spent].astype("float64").clip(lower=0.0)
        columns[list(KNOB_COLUMNS)] = _whole(columns[list(KNOB_COLUMNS)], -MOST_VALUE, MOST_VALUE)
        columns[[cycles]] = _whole(columns[[cycles]].fillna(-1), -MOST_CYCLES, MOST_CYCLES)
        words = ["status", "failure", "reason"]
        columns[words] = columns[words].astype(str)
        if not np.isfinite(columns[spent].fillna(0.0).to_numpy()).all():
            raise ValueError("a number of seconds is not finite")
    except (OSError, ValueError, KeyError, EOFError, zlib.error) as error:
        raise TableError(
            f"{path} is not a table of a VTA stack ({error}); it must be a CSV file with the "
            f"columns {', '.join(KNOB_COLUMNS)}, status, failure, reason, {cycles}"
        ) from None
    if columns.empty:
        raise TableError(f"{path} contains no config; give a table with at least one row")
    if unknown := set(columns["status"]) - set(STATUSES):
        raise TableError(
            f"{path} contains the unknown status '{sorted(map(str, unknown))[0]}'; known: "
            f"{', '.join(STATUSES)}"
        )
    valid = columns["status"] == "valid"
    if (columns.loc[valid, cycles] <= 0).any():
        raise TableError(
            f"{path} contains a valid config without {cycles}; every valid row needs its cycles"
        )
    columns.loc[~valid, cycles] = -1
    return columns


def _text(path: Path) -> bytes:
    """Return the content of a file, decompressed if its name ends with `.gz`.

    Raises:
        TableError: the content is larger than `MOST_TEXT` bytes.
        OSError: the file cannot be read.
        EOFError: the compressed data is incomplete.
        zlib.error: the compressed data is damaged.
    """
    with path.open("rb") as packed:
        handle = gzip.GzipFile(fileobj=packed) if path.name.endswith(".gz") else packed
        text = handle.read(MOST_TEXT + 1)
    if len(text) > MOST_TEXT:
        raise TableError(
            f"{path} contains more than {MOST_TEXT >> 20} MiB of text; give one table per layer"
        )
    return text


def _whole(numbers: pd.DataFrame, least: int, most: int) -> pd.DataFrame:
    """Convert numbers to int64, after checking that they are whole and in range.

    Args:
        numbers: the numbers.
        least: smallest allowed number.
        most: largest allowed number.

    Raises:
        ValueError: a number is out of range or missing.
    """
    floats = numbers.astype("float64")
    if not ((floats >= least) & (floats <= most)).to_numpy().all():
        raise ValueError(f"a number is not between {least} and {most}")
    return floats.astype("int64")


def _reference_workload(path: Path, table: Path, name: str) -> Workload:
    if not table.is_file():
        raise TableError(f"the file {table} does not exist; give the path of a table")
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
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise TableError(
            f"the reference.json next to {path} does not describe the layer '{name}'; it "
            "must contain the layer's height, width, in_channels, out_channels, kernel, "
            "stride and pad"
        ) from None


HARDWARE = "vta-pynq"
"""Specification of the hardware on which the tables were recorded. Its cycles are in the column
`cycles_pynq`."""


def recorded_target(files: Sequence[Path], name: str = "replay") -> ReplayTarget:
    """Create a target that answers from recorded tables instead of measuring.

    Its estimates are those of the hardware on which the tables were recorded.

    Args:
        files: CSV files, one per workload.
        name: name of the target.

    Raises:
        TableError: a table is invalid, or two tables belong to the same layer.
    """
    spec = VtaSpec.load(HARDWARE)
    tables = [read_stack_table(path, clock_mhz=spec.clock_mhz) for path in files]
    seen: dict[str, Path] = {}
    for path, table in zip(files, tables, strict=True):
        if table.workload.id in seen:
            other = seen[table.workload.id]
            raise TableError(
                f"{path} and {other} are tables of the same layer; give only one of them"
            )
        seen[table.workload.id] = path
    template = VtaTarget(spec, "template")
    spaces = {table.workload.id: table.space for table in tables}
    return ReplayTarget(
        tables, name=name, hardware=template.hardware_features(),
        estimates=_CarriedEstimates(template, spaces),
    )  # fmt: skip


@dataclass(frozen=True)
class _CarriedEstimates:
    """Estimates of template schedules, for configs that use the knob indices of recorded tables.

    A recorded table may lack some knob values. Its knob indices then differ from those of the
    template space.

    Attributes:
        template: target that computes the estimates.
        spaces: schedule space of each table, by workload ID.
    """

    template: VtaTarget
    spaces: Mapping[str, Space]

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        here, there = self.spaces[workload.id], self.template.space(workload)
        return self.template.estimate(workload, _carried(configs, here, there))


def _carried(configs: Configs, here: Space, there: Space) -> Configs:
    """Convert the knob indices of configs from one space to another space with the same knobs.

    The knob indices of a schedule differ if a table lists only a part of a space and so lacks some
    values of a knob.

    Args:
        configs: knob indices in the space `here`, shape (n, knobs).
        here: the space to convert from.
        there: the space to convert to.

    Returns:
        Knob indices in the space `there`, int32, shape (n, knobs).

    Raises:
        TableError: a knob value does not exist in the space `there`.
    """
    values = here.values(configs)
    columns = []
    for k, knob in enumerate(there.knobs):
        known_values = np.asarray(knob.values)
        index = np.minimum(np.searchsorted(known_values, values[:, k]), len(known_values) - 1)
        if not np.array_equal(known_values[index], values[:, k]):
            raise TableError(
                f"a table contains values of {knob.name} that the template does not have "
                f"({', '.join(map(str, knob.values))}); check that reference.json describes "
                "this layer"
            )
        columns.append(index)
    return np.stack(columns, axis=1).astype(np.int32)
