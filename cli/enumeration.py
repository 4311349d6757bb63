"""The whole space of a workload as a table on disk."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from targets import make_target
from targets.base import Lowered, Measurements, Space
from targets.errors import TilewrightError
from targets.files import write_atomically
from targets.workload import parse_workload
from tuning.folders import check_folder

SUFFIXES = (".csv", ".csv.gz", ".parquet")


def enumerate_to(
    out: Path, workload: str, epilogue: str, target_name: str, space: str, stock: bool
) -> None:
    """Write one row a schedule, in the order of the flat index, and print how many are valid."""
    if not out.name.endswith(SUFFIXES):
        raise TilewrightError(f"{out}: write a table as {', '.join(SUFFIXES)}")
    if stock and space != "template":
        raise TilewrightError("--stock restricts the template; add --space template")
    what = parse_workload(workload, epilogue)
    target = make_target(target_name, space, stock)
    check_folder(out.parent)
    total = target.space(what).size
    start = time.perf_counter()
    with _progress() as progress:
        bar = progress.add_task(f"{what} on {target.name}", total=total)
        lowered, measured = target.enumerate(what, lambda done: progress.advance(bar, done))
    seconds = time.perf_counter() - start
    table = frame(target.space(what), lowered, measured)
    write_atomically(out, _encoded(table, out.name))
    valid = table[table["status"] == "valid"]
    best = f"; best {int(valid['cycles'].min()):,} cycles" if len(valid) else ""
    Console().print(
        f"{out}: {total:,} schedules, {len(valid):,} valid ({len(valid) / total:.1%}){best}; "
        f"{total / seconds:,.0f} a second",
        highlight=False,
        soft_wrap=True,
    )


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


def _known(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pd.Series[int]:
    return pd.Series(numbers, dtype="Int64").mask(numbers < 0)


def _encoded(table: pd.DataFrame, name: str) -> bytes:
    buffer = io.BytesIO()
    if name.endswith(".parquet"):
        table.to_parquet(buffer, index=False)
    else:
        zipped = {"method": "gzip", "mtime": 0} if name.endswith(".gz") else None
        table.to_csv(buffer, index=False, compression=zipped)
    return buffer.getvalue()


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal,
    )  # fmt: skip
