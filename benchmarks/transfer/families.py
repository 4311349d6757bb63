"""Measures what models learn about one hardware family from two other families.

    python -m benchmarks.transfer.families [--folder DIR] [--out FILE]
    python -m benchmarks.transfer.families --redraw benchmarks/rows/transfer-held-out.parquet

The families are VTA, Gemmini and this CPU. The rows of VTA and Gemmini are a dataset of random
machines that run the same small layers; it is built unless DIR contains it. The rows of the CPU are
those of `benchmarks.cpu.schedules`.

With the columns `shared`, models see only what all three families have: the sizes of the workload,
and the bytes and loop iterations of the compiled program relative to the workload's
multiplications. With `all`, they see all columns. For each family, one model is trained on the two
other families. For comparison, other models are trained on the family itself, with a third of it
held out at a time: whole machines, or whole layers if the family has one machine.

`formula only` learns nothing: it is the time formula of VTA and Gemmini, and the closed-form
estimate of the CPU. `with formula` learns the difference to the formula, and `gain` is how much
better it ranks. Models are trained with `SEEDS` seeds. The confidence intervals resample tasks, and
seeds for all tasks at once, because one model is evaluated on all tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.cpu.schedules import ROWS as CPU_ROWS
from benchmarks.intervals import Floats, Interval, crossed_mean
from benchmarks.results import markdown_table, row_arguments
from benchmarks.transfer.controls import shuffle_labels
from tilewright.evaluation.datasets.folder import read_about, read_table
from tilewright.evaluation.datasets.metrics import pairwise_accuracy
from tilewright.evaluation.datasets.options import DatasetOptions
from tilewright.evaluation.datasets.plan import (
    DatasetPlan,
    PlanCell,
    PlanPart,
    draw_hardware,
    make_plan,
)
from tilewright.flows.dataset import build_dataset
from tilewright.models.transfer.columns import PEAK, REFERENCE
from tilewright.models.transfer.registry import make_model
from tilewright.models.transfer.training_data import TrainingTable, reference, select_columns
from tilewright.search import LocalRunner
from tilewright.targets.features import Features
from tilewright.targets.workload import parse_workload

ACCELERATORS = ("vta", "gemmini")
FAMILIES = (*ACCELERATORS, "cpu")
SOURCES = ("the other families", "its own family")
OTHERS, OWN = SOURCES
SEEDS, FOLDS = 5, 3
FEWEST = 4
"""Minimum number of rows with a latency in a task that is evaluated."""
MODELS = ("with formula", "without formula", "shuffled labels", "formula only")
WITH, _, SHUFFLED, FORMULA = MODELS
Rows = tuple[TrainingTable, Floats]
"""Rows of a family, and the log2 latency of each row by the family's formula, up to a constant per
task."""
SHARED, ALL = "shared", "all"
"""The columns that models see."""
MACS = "workload macs"
COUNTS: Mapping[str, tuple[str, str]] = {
    "bytes": ("program hidden bytes", "program bytes_touched"),
    "iterations": ("program hidden iterations", "program operations"),
}
"""Columns with the work of compiled programs: the name on accelerators, where the column holds half
of the log2, and the name on the CPU, where it holds the log2."""
MACHINES, ROWS = 6, 32
"""Number of machines per family, and number of rows per machine and layer."""
EPILOGUE = "bias, >> 8, min 127, max 0"
LAYERS = (
    "dense:n=128,c=128,o=64", "dense:n=128,c=64,o=128", "dense:n=1,c=512,o=1000",
    "dense:n=16,c=256,o=256", "conv2d:n=1,c=96,h=14,w=14,o=32,k=1,s=1,p=0",
    "conv2d:n=1,c=160,h=7,w=7,o=96,k=1,s=1,p=0", "conv2d:n=1,c=64,h=14,w=14,o=128,k=1,s=1,p=0",
    "conv2d:n=1,c=64,h=28,w=28,o=128,k=1,s=2,p=0", "conv2d:n=1,c=32,h=14,w=14,o=32,k=3,s=1,p=1",
    "conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=2,p=1", "conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1",
    "conv2d:n=1,c=128,h=7,w=7,o=64,k=3,s=1,p=1",
)  # fmt: skip
T = TypeVar("T")


def plan(options: DatasetOptions) -> DatasetPlan:
    """Return a plan of all layers on random machines of each family, with `ROWS` rows per pair."""
    hardware = [
        one for kind in ACCELERATORS for one, _ in draw_hardware(kind, MACHINES, options.seed)
    ]
    cells = tuple(PlanCell(place, ROWS) for place in range(len(LAYERS)))
    workloads = tuple(parse_workload(text, EPILOGUE).to_json() for text in LAYERS)
    parts = tuple(PlanPart(place, 0, cells) for place in range(len(hardware)))
    return DatasetPlan(options, "families", tuple(hardware), workloads, parts)


class _PlannedRunner(LocalRunner):
    """Runner that builds a dataset by `plan` instead of the usual plan."""

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        if step is make_plan:
            step = cast(Callable[..., T], plan)
        return super().__call__(step, *given)


def build(folder: Path) -> None:
    """Build the dataset unless the folder already has it."""
    total = len(ACCELERATORS) * MACHINES * len(LAYERS) * ROWS
    build_dataset(_PlannedRunner(), folder, DatasetOptions(rows=total, cpu_rows=0))


def shared_columns(features: Features, processor: bool) -> Features:
    """Return the columns that all families have.

    Columns that count a program's work are logarithms, relative to the workload's multiplications.
    """
    names = [name for name in features.names if name.startswith("workload ")]
    known = {name: features.matrix[:, list(features.names).index(name)] for name in names}
    for name, own in COUNTS.items():
        place = list(features.names).index(own[processor])
        log2 = features.matrix[:, place] * (1.0 if processor else 2.0)
        known[f"program {name}"] = log2 - known[MACS]
    return Features.from_names(np.stack([*known.values()], axis=1), [*known])


def tables(folder: Path, rows: Path, columns: str) -> dict[str, Rows]:
    """Return the valid rows of each family with the formula's log2 latencies, shape (rows,).

    `columns` says whether models see only the `SHARED` columns or all columns.
    """
    whole, about = read_table(folder), read_about(folder)
    kinds = np.array([device.kind for device in about.hardware])[whole.hardware]
    tables = {}
    for kind in ACCELERATORS:
        table = whole.rows(kinds == kind)
        known = (REFERENCE, PEAK)
        said = reference(select_columns(table.features, known), known).astype(np.float64)
        kept = ~np.isnan(said) & table.valid
        if columns == SHARED:
            table = replace(table, features=shared_columns(table.features, False))
        tables[kind] = (table.rows(kept), said[kept])
    measured = pd.read_parquet(rows)
    measured = measured[measured["status"] == "valid"]
    layer = pd.factorize(measured["layer"])[0].astype(np.int64)
    names = [name for name in measured.columns if " " in name]
    features = Features.from_names(measured[names].to_numpy(np.float64), names)
    table = TrainingTable(
        shared_columns(features, True) if columns == SHARED else features,
        np.log2(measured["seconds"].to_numpy(np.float64)),
        layer + whole.task.max() + 1,
        layer + whole.workload.max() + 1,
        np.full(len(layer), whole.hardware.max() + 1),
    )
    tables["cpu"] = (table, np.log2(measured["estimated"].to_numpy(np.float64)))
    return tables


def measure(result: Mapping[str, Rows]) -> pd.DataFrame:
    """Return one row per task, source, model and seed: the fraction of pairs in the right order.

    `result` has the rows of each family and the formula's log2 latencies, shape (rows,).
    """
    rows: list[dict[str, object]] = []
    for family, (table, formula) in result.items():
        others = _join_rows([item for name, item in result.items() if name != family])
        for source, model in product(SOURCES, MODELS):
            for seed in range(1 if model == FORMULA else SEEDS):
                said = formula.copy()
                if model != FORMULA and source == OTHERS:
                    said = _predict_rows(others, (table, formula), model, seed)
                elif model != FORMULA:
                    for fold in folds_of(table):
                        rest, own = ((table.rows(x), formula[x]) for x in (~fold, fold))
                        said[fold] = _predict_rows(rest, own, model, seed)
                key = {"family": family, "source": source, "model": model, "seed": seed}
                rows += [key | item for item in _score_rows(table, said)]
    return pd.DataFrame(rows)


def folds_of(table: TrainingTable) -> list[NDArray[np.bool_]]:
    """Split a family into thirds, each a mask of shape (rows,).

    A third contains whole machines, or whole layers if there is only one machine.
    """
    one = len(np.unique(table.hardware)) == 1
    place = np.unique(table.workload if one else table.hardware, return_inverse=True)[1]
    return [place % FOLDS == fold for fold in range(FOLDS)]


def _predict_rows(learned: Rows, test: Rows, model: str, seed: int) -> Floats:
    """Train a model on some rows, and predict the log2 latencies of other rows.

    Predictions are relative: they may be off by a constant per task.
    """
    table, known = learned
    if model == WITH:
        table = replace(table, log_latency=table.log_latency - known)
    if model == SHUFFLED:
        table = shuffle_labels(table, seed)
    learner = make_model("xgboost", seed, {"minutes": 1.0, "formula": False, "threads": 1})
    learner.fit(table)
    predicted = learner.predict(test[0].features).log_latency
    return predicted + test[1] if model == WITH else predicted


def _join_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenate tables. Columns that a table lacks are NaN."""
    tables, formulas = zip(*parts, strict=True)
    names = list(dict.fromkeys(name for table in tables for name in table.features.names))
    matrix = np.concatenate([select_columns(table.features, names) for table in tables])
    numbers = (
        np.concatenate([getattr(table, name) for table in tables])
        for name in ("log_latency", "task", "workload", "hardware")
    )
    features = Features.from_names(matrix.astype(np.float64), names)
    return TrainingTable(features, *numbers), np.concatenate(formulas)


def _score_rows(table: TrainingTable, said: Floats) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for task in np.unique(table.task):
        own = table.task == task
        right = pairwise_accuracy(table.log_latency[own], said[own])
        if own.sum() >= FEWEST and np.isfinite(right):
            rows.append({"task": int(task), "programs": int(own.sum()), "right": right})
    return rows


def table_of(rows: pd.DataFrame) -> str:
    """Return a Markdown table: the fraction of pairs in the right order, by family and source."""
    lines: list[list[str]] = []
    for family, source, columns in product(FAMILIES, SOURCES, (SHARED, ALL)):
        own = rows[(rows[["family", "source", "columns"]] == [family, source, columns]).all(axis=1)]
        grids = {
            str(model): group.pivot(index="task", columns="seed", values="right").to_numpy()
            for model, group in own.groupby("model")
        }
        cells = [_short(crossed_mean(grids[model])) for model in MODELS]
        cells.append(_short(crossed_mean(grids[WITH] - grids[FORMULA])))
        lines.append([family, source, columns, *cells])
    head = ["judged on", "learned from", "columns", *MODELS, "gain"]
    return markdown_table(head, "l", lines)


def _short(interval: Interval) -> str:
    return interval.text(3).replace("0.", ".").replace("-", "−")


def main() -> None:
    """Build the dataset, measure the models, print the table and write the rows."""
    parser = row_arguments(__doc__, "built/families.parquet")
    parser.add_argument("--folder", type=Path, default=Path("built/families"))
    parser.add_argument("--cpu", type=Path, default=CPU_ROWS, help="rows measured on the CPU")
    options = parser.parse_args()
    if options.redraw is not None:
        print(table_of(pd.read_parquet(options.redraw)))
        return
    build(options.folder)
    parts = [
        measure(tables(options.folder, options.cpu, columns)).assign(columns=columns)
        for columns in (SHARED, ALL)
    ]
    rows = pd.concat(parts, ignore_index=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(options.out, index=False)
    print(table_of(rows))


if __name__ == "__main__":
    main()
