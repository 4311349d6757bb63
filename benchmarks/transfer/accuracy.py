"""Measures how well transfer models rank programs, by kind of model, split and number of rows.

The figures are those of `tilewright model train`. The table also has two controls. `formula` is the
hand-written time formula alone, which learns nothing. `KIND without formula` is a model as
in publications: it predicts the latency itself instead of the difference to the formula, and does
not get the terms of the formula as features. This module is a part of
`benchmarks.transfer.compare`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.results import KeptRows
from tilewright.evaluation.datasets.folder import digest_of, read_table
from tilewright.evaluation.datasets.metrics import score
from tilewright.evaluation.datasets.training import evaluate_model, split
from tilewright.models.transfer.columns import PEAK, REFERENCE
from tilewright.models.transfer.registry import make_model
from tilewright.models.transfer.training_data import TrainingTable, reference, select_columns

FORMULA, WITHOUT = "formula", " without formula"
KINDS = (
    FORMULA, "xgboost", "lightgbm", "mlp", "attention",
    *(kind + WITHOUT for kind in ("xgboost", "lightgbm", "mlp")),
)  # fmt: skip
SPLITS = ("by_target", "by_task", "within_task")


def measure(options: argparse.Namespace, rows: KeptRows) -> None:
    """Measure every kind and split, and the split by_target also with fewer rows."""
    kinds = options.kinds or ((FORMULA, "xgboost", "xgboost" + WITHOUT) if options.quick else KINDS)
    whole: TrainingTable | None = None
    for kind in kinds:
        for by in SPLITS[:1] if options.quick else SPLITS:
            for share in (1.0, 0.1, 0.01):
                if (by != SPLITS[0] or kind not in KINDS[1:5]) and share < 1:
                    continue
                key = {"kind": kind, "split": by, "share": share}
                if rows.has("accuracy", **key):
                    continue
                whole = read_table(options.dataset) if whole is None else whole
                rows.keep("accuracy", key | _judge_part(whole, kind, by, share, options))


def _judge_part(
    whole: TrainingTable, kind: str, by: Any, share: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Train a model on a fraction of the training rows, and return its figures.

    The test rows are the same for all fractions.
    """
    train, test = split(whole, by, 0)
    if kind == FORMULA:
        return formula_figures(whole.rows(test)) | {"dataset": digest_of(options.dataset)}
    rows = np.flatnonzero(train)
    table = whole.rows(
        np.sort(np.random.default_rng(0).permutation(rows)[: int(share * len(rows))])
    )
    given = {"minutes": options.minutes, "formula": not kind.endswith(WITHOUT)}
    model = make_model(kind.removesuffix(WITHOUT), 0, given)
    trained = model.fit(table)
    return evaluate_model(model, whole.rows(test)) | {
        "rows": trained.rows, "seconds": trained.seconds, "epochs": trained.epochs,
        "stopped": trained.stopped, "all_epochs_seconds": trained.full_seconds,
        "dataset": digest_of(options.dataset),
    }  # fmt: skip


def formula_figures(table: TrainingTable) -> dict[str, Any]:
    """Return the figures of the time formula alone; before compiling, it gives no prediction."""
    columns = (REFERENCE, PEAK)
    said = reference(select_columns(table.features, columns), columns).astype(np.float64)
    table = table.rows(~np.isnan(said))
    result = score(table, said[~np.isnan(said)])
    return {
        "pairwise_accuracy": result.pairwise_accuracy, "interval": list(result.interval),
        "top1_regret": result.top1_regret, "top8_regret": result.top8_regret,
        "tasks": result.tasks, "tested": result.rows,
        "visible": {"pairwise_accuracy": float("nan")},
        "rows": 0, "seconds": 0.0, "epochs": 0.0, "stopped": "nothing is learned",
    }  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a summary with one line per model."""
    return "\n".join(
        f"{row['kind']:24} {row['split']:12} {row['rows']:>9,} rows {row['seconds']:6.0f} s  "
        f"{row['pairwise_accuracy']:.4f} ({row['interval'][0]:.4f}-{row['interval'][1]:.4f}), "
        f"before compiling {row['visible']['pairwise_accuracy']:.4f}"
        for row in rows
    )
