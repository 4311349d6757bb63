"""Measures what models that learned from one family of accelerators say of another one.

    python -m benchmarks.transfer_families [--folder DIR] [--out FILE]
    python -m benchmarks.transfer_families --redraw benchmarks/rows/transfer-families.json

Builds a dataset of drawn machines of both kinds that run the same small layers, unless DIR has it.
A family is held out whole. Beside it stand, of the same machine that is judged on, models of the
other machines of its own family, and controls: the time formula by itself, which learns nothing,
and labels that were shuffled within their tasks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.transfer_accuracy import formula_figures
from tilewright.core.files import Json
from tilewright.evaluation.datasets.folder import digest_of, read_table
from tilewright.evaluation.datasets.hardware import drawn
from tilewright.evaluation.datasets.metadata import read_about
from tilewright.evaluation.datasets.metrics import score
from tilewright.evaluation.datasets.plan import (
    DatasetOptions,
    DatasetPlan,
    PlanCell,
    PlanPart,
    make_plan,
)
from tilewright.evaluation.datasets.training import visible
from tilewright.flows.dataset import build_dataset
from tilewright.models.transfer.registry import make_model
from tilewright.models.transfer.training_table import TrainingTable
from tilewright.search import LocalRunner
from tilewright.targets.workload import parse_workload

FAMILIES = ("vta", "gemmini")
MACHINES, ROWS = 6, 32
"""Of each family, and rows of each machine and layer."""
EPILOGUE = "bias, >> 8, min 127, max 0"
LAYERS = (
    "dense:n=128,c=128,o=64", "dense:n=128,c=64,o=128", "dense:n=1,c=512,o=1000",
    "dense:n=16,c=256,o=256", "conv2d:n=1,c=96,h=14,w=14,o=32,k=1,s=1,p=0",
    "conv2d:n=1,c=160,h=7,w=7,o=96,k=1,s=1,p=0", "conv2d:n=1,c=64,h=14,w=14,o=128,k=1,s=1,p=0",
    "conv2d:n=1,c=64,h=28,w=28,o=128,k=1,s=2,p=0", "conv2d:n=1,c=32,h=14,w=14,o=32,k=3,s=1,p=1",
    "conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=2,p=1", "conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1",
    "conv2d:n=1,c=128,h=7,w=7,o=64,k=3,s=1,p=1",
)  # fmt: skip
MODELS = ("xgboost", "xgboost without formula", "shuffled labels")
T = TypeVar("T")
Row = dict[str, Any]


def plan(options: DatasetOptions) -> DatasetPlan:
    """All layers on drawn machines of each family, `ROWS` rows of each pair."""
    hardware = [one for kind in FAMILIES for one, _ in drawn(kind, MACHINES, options.seed)]
    cells = tuple(PlanCell(place, ROWS) for place in range(len(LAYERS)))
    workloads = tuple(parse_workload(text, EPILOGUE).to_json() for text in LAYERS)
    parts = tuple(PlanPart(place, 0, cells) for place in range(len(hardware)))
    return DatasetPlan(options, "families", tuple(hardware), workloads, parts)


class _Steps(LocalRunner):
    """Builds by that plan."""

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        own: dict[object, Callable[..., Any]] = {make_plan: plan}
        return super().__call__(own.get(step, step), *given)


def build(folder: Path) -> None:
    """The dataset, unless the folder has it."""
    total = len(FAMILIES) * MACHINES * len(LAYERS) * ROWS
    build_dataset(_Steps(), folder, DatasetOptions(total, 0))


def measure(dataset: Path) -> list[Row]:
    """Right pairs of each model on each family, learned from the other one and from its own."""
    table, about = read_table(dataset), read_about(dataset)
    family = np.array([each.kind for each in about.hardware])[table.hardware]
    last = {name: np.unique(table.hardware[family == name])[-2:] for name in FAMILIES}
    rows: list[Row] = []
    for name in FAMILIES:
        tested = (family == name) & np.isin(table.hardware, last[name])
        test = table.rows(tested)
        rows.append(_row(name, "nothing", "formula only", _formula(test)))
        for source, mask in (
            ("the other family", family != name),
            ("its own family", (family == name) & ~tested),
            ("both", ~tested),
        ):
            for model in MODELS:
                rows.append(_row(name, source, model, _learned(table.rows(mask), test, model)))
                print(json.dumps(rows[-1]), flush=True)
    return [{**row, "dataset": digest_of(dataset), "rows": len(table)} for row in rows]


def _row(family: str, source: str, model: str, found: Mapping[str, Json]) -> Row:
    return {"family": family, "learned from": source, "model": model, **found}


def _formula(test: TrainingTable) -> dict[str, Json]:
    found = formula_figures(test)
    return {"right pairs": found["pairwise_accuracy"], "interval": found["interval"], "before": 0.5}


def _learned(table: TrainingTable, test: TrainingTable, model: str) -> dict[str, Json]:
    """Figures of a model that learned from a table."""
    if model == MODELS[2]:
        table = shuffled(table, 0)
    learner = make_model("xgboost", 0, {"minutes": 1.0, "formula": model == MODELS[0]})
    learner.fit(table)
    after = score(test, learner.predict(test.features).log_latency)
    seen = score(test, learner.predict(visible(test.features)).log_latency)
    return {
        "right pairs": after.pairwise_accuracy, "interval": list(after.interval),
        "before": seen.pairwise_accuracy,
    }  # fmt: skip


def shuffled(table: TrainingTable, seed: int) -> TrainingTable:
    """The table with latencies that changed places within their tasks."""
    rng, latency = np.random.default_rng(seed), table.log_latency.copy()
    order = np.lexsort((rng.random(len(table)), ~table.valid, table.task))
    latency[np.lexsort((~table.valid, table.task))] = table.log_latency[order]
    return replace(table, log_latency=latency)


def table_of(rows: Sequence[Row]) -> str:
    """Markdown: a line a family and source, right pairs of compiled programs and before."""
    lines = [
        "| judged on | learned from | " + " | ".join(MODELS) + " | formula only |",
        "|---|---|" + "---|" * (len(MODELS) + 1),
    ]
    for family in FAMILIES:
        own = [row for row in rows if row["family"] == family]
        formula = next(row for row in own if row["model"] == "formula only")
        for source in dict.fromkeys(row["learned from"] for row in own[1:]):
            cells = [
                _cell(next(r for r in own if (r["learned from"], r["model"]) == (source, model)))
                for model in MODELS
            ]
            lines.append(f"| {family} | {source} | {' | '.join(cells)} | {_cell(formula)} |")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    def short(value: float) -> str:
        return f"{value:.3f}".removeprefix("0")

    low, high = row["interval"]
    return f"{short(row['right pairs'])} ({short(low)}–{short(high)}), {short(row['before'])}"


def main() -> None:
    """Build, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path("built/families"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--redraw", type=Path, help="print these rows; run nothing")
    options = parser.parse_args()
    if options.redraw is not None:
        print(table_of(json.loads(options.redraw.read_text())))
        return
    build(options.folder)
    rows = measure(options.folder)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1))
    print(table_of(rows))


if __name__ == "__main__":
    main()
