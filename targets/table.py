"""Complete tables: what every config of a space does on some hardware, so that tuners can be judged
against the true optimum and replayed in seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from targets.base import Configs, Knob, Space, Target
from targets.errors import TilewrightError
from targets.workload import Workload

KNOB_COLUMNS = ("tile_b", "tile_h", "tile_w", "tile_ci", "tile_co", "oc_nthread", "h_nthread")
_FIXED = ("status", "failure", "reason", "cycles", "seconds")
_CHUNK = 4096


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
            raise TableError(f"table {self.name} has no valid config")
        return int(valid.min())

    @property
    def digest(self) -> str:
        """Content hash of all that a tuner can see of it."""
        parts = [self.flat.tobytes(), self.cycles.tobytes(), "".join(self.status).encode()]
        return hashlib.sha256(b"".join([self.workload.id.encode(), *parts])).hexdigest()[:12]

    def at(self, configs: Configs) -> NDArray[np.int64]:
        """Row of each config. Raises `TableError` if one is not listed."""
        flat = self.space.ravel(configs)
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
    workload = _reference_workload(reference or path.with_name("reference.json"), name)
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values={cycles: [""]})
        columns = frame[[*KNOB_COLUMNS, "status", "failure", "reason", cycles]]
    except (OSError, ValueError, KeyError) as error:
        raise TableError(
            f"{path} is no table of a VTA stack ({error}); expected a CSV with the columns "
            f"{', '.join(KNOB_COLUMNS)}, status, failure, reason, {cycles}"
        ) from None
    if columns.empty:
        raise TableError(f"{path} lists no config")
    knobs = tuple(Knob(k, tuple(sorted(map(int, columns[k].unique())))) for k in KNOB_COLUMNS)
    product = Space("template", knobs)
    indices = [np.searchsorted(knob.values, columns[knob.name]) for knob in knobs]
    flat = product.ravel(np.stack(indices, axis=1).astype(np.int32))
    order = np.argsort(flat, kind="stable")
    flat, columns = flat[order], columns.iloc[order]
    if len(np.unique(flat)) < len(flat):
        raise TableError(f"{path} lists a config twice")
    complete = len(flat) == product.size
    status = columns["status"].to_numpy(dtype=object)
    count = columns[cycles].fillna(-1).to_numpy(dtype=np.int64)
    count = np.where(status == "valid", count, -1)
    compiled = status != "compile_error"
    return Table(
        name=name,
        workload=workload,
        space=product if complete else Space("template", knobs, tuple(map(int, flat))),
        flat=flat,
        status=status,
        failures=np.where(compiled, "", columns["failure"].to_numpy(dtype=object)),
        reasons=(columns["failure"] + ": " + columns["reason"]).to_numpy(dtype=object),
        cycles=count,
        seconds=np.where(count >= 0, count / (clock_mhz * 1e6), np.nan),
        hidden=np.empty((len(flat), 0)),
        hidden_names=(),
    )


def enumerate_space(
    target: Target,
    workload: Workload,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Table:
    """Measure every config of a workload's space. With a folder, the table is kept there as Parquet
    under the workload's id and the target's fingerprint (which covers the simulator's version) and
    read from there next time. `progress(done, total)` is called between chunks."""
    space = target.space(workload)
    path = None if folder is None else folder / f"{workload.id}-{target.fingerprint}.parquet"
    if path is not None and path.exists():
        return _from_frame(pd.read_parquet(path), workload, space, path.stem)
    total = int(np.prod(space.cardinalities))
    flat = np.arange(total) if space.listed is None else np.asarray(space.listed)
    chunks = []
    for start in range(0, len(flat), _CHUNK):
        part = flat[start : start + _CHUNK]
        chunks.append(_measured_frame(target, workload, space, part))
        if progress is not None:
            progress(start + len(part), len(flat))
    frame = pd.concat(chunks, ignore_index=True)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path.with_suffix(".new"), index=False)
        path.with_suffix(".new").replace(path)
    return _from_frame(frame, workload, space, f"{workload.id}-{target.fingerprint}")


def _measured_frame(
    target: Target, workload: Workload, space: Space, flat: NDArray[np.int64]
) -> pd.DataFrame:
    lowered = target.lower(workload, space.unravel(flat))
    measured = target.measure(lowered)
    hidden = {f"hidden:{n}": lowered.hidden[:, i] for i, n in enumerate(lowered.hidden_names)}
    return pd.DataFrame(
        {
            "flat": flat,
            "status": measured.status,
            "failure": lowered.failures,
            "reason": measured.reason,
            "cycles": measured.cycles,
            "seconds": measured.seconds,
            **hidden,
        }
    )


def _from_frame(frame: pd.DataFrame, workload: Workload, space: Space, name: str) -> Table:
    hidden = [c for c in frame.columns if c.startswith("hidden:")]
    return Table(
        name=name,
        workload=workload,
        space=space,
        flat=frame["flat"].to_numpy(dtype=np.int64),
        status=frame["status"].to_numpy(dtype=object),
        failures=frame["failure"].to_numpy(dtype=object),
        reasons=frame["reason"].to_numpy(dtype=object),
        cycles=frame["cycles"].to_numpy(dtype=np.int64),
        seconds=frame["seconds"].to_numpy(dtype=np.float64),
        hidden=frame[hidden].to_numpy(dtype=np.float64),
        hidden_names=tuple(c.removeprefix("hidden:") for c in hidden),
    )


def _reference_workload(path: Path, name: str) -> Workload:
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
