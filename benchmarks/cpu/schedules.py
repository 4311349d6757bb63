"""Measures how well the CPU's latency estimates rank random schedules.

    python -m benchmarks.cpu.schedules --rows 10
    python -m benchmarks.cpu.schedules --redraw benchmarks/rows/cpu-schedules.parquet

The layers are those of `benchmarks.layers.CPU_JUDGED`, which were not used to choose the constants
of the estimates. They run on one thread, and are compiled and timed as the target does it. For each
layer, `MOST` schedules are drawn from the whole space and measured in rounds of `ROUND` schedules.
The file is written after each layer, and a later run resumes from it. A row has a schedule, its
latency, its estimate, and the program's features under the names that datasets use. The table has
Spearman's rank correlation per layer, and the mean with a confidence interval over layers and
schedules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from scipy import stats

from benchmarks.intervals import Floats, hierarchical
from benchmarks.layers import CPU_JUDGED, cpu_workload
from benchmarks.results import Redraw, markdown_table
from tilewright.models.transfer.columns import columns_of
from tilewright.targets.base import Configs, Target
from tilewright.targets.capabilities import Estimates, capability
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload

MOST, ROUND = 100, 10
TARGET = "cpu:threads=1"
ROWS = Path("benchmarks/rows/cpu-schedules.parquet")


def main(
    rows: Annotated[int, typer.Option(help="Schedules per layer.", max=MOST)] = MOST,
    out: Annotated[
        Path, typer.Option(help="Parquet file for the rows; existing rows are kept.")
    ] = Path("built/cpu-schedules.parquet"),
    redraw: Redraw = None,
) -> None:
    """Measure what is missing in the file, and print the table."""
    if redraw is None:
        _measure(rows, out)
    print(table_of(pd.read_parquet(redraw or out)))


def _measure(rows: int, out: Path) -> None:
    target = make_target(TARGET)
    result = [pd.read_parquet(out)] if out.exists() else []
    out.parent.mkdir(parents=True, exist_ok=True)
    for first in range(0, rows, ROUND):
        for layer in CPU_JUDGED:
            if sum((item["layer"] == layer).sum() for item in result) > first:
                continue
            workload = cpu_workload(layer)
            configs = _draw_schedules(target, workload)[first : first + ROUND]
            result.append(_rows(target, layer, workload, configs))
            pd.concat(result, ignore_index=True).to_parquet(out, index=False, compression="zstd")
            print(f"{layer}: {first + ROUND} of {rows}", flush=True)


def _draw_schedules(target: Target, workload: Workload) -> Configs:
    """Return distinct random configs, int array of shape (`MOST`, knobs); the same in every run."""
    space = target.space(workload)
    rng = np.random.default_rng(int(workload.id, 16))
    return space.unravel(rng.choice(space.size, MOST, replace=False))


def _rows(target: Target, layer: str, workload: Workload, configs: Configs) -> pd.DataFrame:
    """Measure schedules, and return one row per schedule; `seconds` is NaN if it does not run."""
    lowered = target.lower(workload, configs)
    measured = target.measure(lowered)
    estimates = capability(target, Estimates)
    assert estimates is not None
    predictions = estimates.estimate(workload, configs)
    known = columns_of(
        workload, target.space(workload), configs, target.hardware_features(), lowered.hidden
    )
    about = {
        "layer": layer,
        "config": target.space(workload).ravel(configs),
        "status": measured.status.astype(str),
        "seconds": np.where(measured.valid, measured.seconds, np.nan),
        "estimated": predictions.matrix[:, list(predictions.names).index("seconds")],
    }
    columns = pd.DataFrame(known.matrix.astype(np.float32), columns=list(known.names))
    return pd.concat([pd.DataFrame(about), columns], axis=1)


def table_of(rows: pd.DataFrame) -> str:
    """Return a Markdown table with one line per layer and a line with the mean."""
    cells = []
    grids = [_grid(rows, name) for name in ("estimated", "seconds")]
    correlations = _correlations(*grids)
    for layer, one, seconds in zip(rows["layer"].unique(), correlations, grids[1], strict=True):
        ran = int(np.isfinite(seconds).sum())
        cells.append((layer, f"{ran} of {len(seconds)}", f"{one:.2f}"))
    mean = hierarchical(_mean, *grids, paired=True)
    ran = int(np.isfinite(grids[1]).sum())
    cells.append(("mean", f"{ran} of {grids[1].size}", mean.text(2)))
    head = ("layer", "schedules that ran", "Spearman's correlation")
    return markdown_table(head, "lr", cells)


def _mean(estimated: Floats, seconds: Floats) -> Floats:
    """Return the mean correlation over the layers that have a correlation."""
    return np.asarray(np.nanmean(_correlations(estimated, seconds), axis=-1))


def _grid(rows: pd.DataFrame, column: str) -> Floats:
    """Return a column with shape (layers, schedules); infinite for schedules that do not run."""
    known = rows[column].where(rows["status"] == "valid", np.inf)
    return np.stack(
        [group.to_numpy(np.float64) for _, group in known.groupby(rows["layer"], sort=False)]
    )


def _correlations(estimated: Floats, seconds: Floats) -> Floats:
    """Return Spearman's rank correlation over the schedules that run, shape (..., layers).

    Both arguments have shape (..., layers, schedules). The correlation is NaN where fewer than two
    schedules with different values run.
    """
    ran = np.isfinite(seconds)
    # Those that do not run are last in both orders, so they change no other's rank.
    left, right = (stats.rankdata(item, axis=-1) for item in (estimated, seconds))
    with np.errstate(invalid="ignore", divide="ignore"):
        count = ran.sum(axis=-1, keepdims=True)
        left, right = (
            np.where(ran, item - (item * ran).sum(axis=-1, keepdims=True) / count, 0.0)
            for item in (left, right)
        )
        squares = (left**2).sum(axis=-1) * (right**2).sum(axis=-1)
        return np.asarray((left * right).sum(axis=-1) / np.sqrt(squares))


if __name__ == "__main__":
    typer.run(main)
