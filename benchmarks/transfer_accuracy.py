"""Measures how well models order programs: every kind and split, by rows, and pruned or not.

Figures are those of `tilewright model train`. A part of `benchmarks.transfer`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.dataset_pruning import pruned
from tilewright.evaluation.datasets.folder import digest_of, read_table
from tilewright.evaluation.datasets.splits import split
from tilewright.evaluation.datasets.training import figures
from tilewright.models.transfer.registry import make_model
from tilewright.models.transfer.training_table import TrainingTable

if TYPE_CHECKING:
    from benchmarks.transfer_rows import Found

KINDS = ("xgboost", "lightgbm", "mlp", "attention")
SPLITS = ("by_target", "by_task", "within_task")


def measure(options: argparse.Namespace, found: Found) -> None:
    """Every kind and split; by_target of fewer rows, and of pruned ones."""
    kinds = options.kinds or (("xgboost", "mlp") if options.quick else KINDS)
    whole: TrainingTable | None = None
    for kind in kinds:
        for by in SPLITS[:1] if options.quick else SPLITS:
            for share, prune in [(1.0, False), (0.1, False), (0.01, False), (1.0, True)]:
                if by != SPLITS[0] and (share < 1 or prune):
                    continue
                key = {"kind": kind, "split": by, "share": share, "pruned": prune}
                if found.has("accuracy", **key):
                    continue
                whole = read_table(options.dataset) if whole is None else whole
                found.keep("accuracy", key | _judged(whole, kind, by, share, prune, options))


def _judged(
    whole: TrainingTable, kind: str, by: Any, share: float, prune: bool, options: argparse.Namespace
) -> dict[str, Any]:
    """Figures of a model of a part of the rows, on the same rows whatever the part."""
    train, test = split(whole, by, 0)
    rows = np.flatnonzero(train)
    table = whole.rows(
        np.sort(np.random.default_rng(0).permutation(rows)[: int(share * len(rows))])
    )
    if prune:
        table = table.rows(pruned(table))
    model = make_model(kind, 0, {"minutes": options.minutes})
    trained = model.fit(table)
    return figures(model, whole.rows(test)) | {
        "rows": trained.rows, "seconds": trained.seconds, "epochs": trained.epochs,
        "stopped": trained.stopped, "all_epochs_seconds": trained.full_seconds,
        "dataset": digest_of(options.dataset),
    }  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a model."""
    return "\n".join(
        f"{row['kind']:10} {row['split']:12} {row['rows']:>9,} rows"
        f"{' pruned' if row['pruned'] else '       '} {row['seconds']:6.0f} s  "
        f"{row['pairwise_accuracy']:.4f} ({row['interval'][0]:.4f}-{row['interval'][1]:.4f}), "
        f"before compiling {row['visible']['pairwise_accuracy']:.4f}"
        for row in rows
    )
