"""Trains control models that know nothing of a dataset, to show what a warm start owes to data."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilewright.evaluation.datasets.folder import digest_of, read_table
from tilewright.models.transfer.columns import PEAK, REFERENCE
from tilewright.models.transfer.registry import make_model
from tilewright.models.transfer.training_data import TrainingTable, select_columns


def controls(options: argparse.Namespace) -> dict[str, Path]:
    """Train the XGBoost control models, unless they exist, and return their folders by name.

    The model `formula` is trained on predictions of the hand-written time formula instead of
    measured latencies. The model `shuffled` is trained on latencies that were shuffled within their
    tasks. It does not learn the difference to the formula; otherwise, it would equal the formula.
    """
    paths = {
        name: options.folder / f"{name}-{digest_of(options.dataset)[:8]}"
        for name in ("formula", "shuffled")
    }
    if all(path.exists() for path in paths.values()):
        return paths
    table = read_table(options.dataset, rows=100_000)
    names = (REFERENCE, PEAK)
    said = select_columns(table.features, names).astype(np.float64).sum(axis=1)
    taught = {
        "formula": replace(table, log_latency=np.where(table.valid, said, np.nan)),
        "shuffled": shuffle_labels(table, 0),
    }
    for name, path in paths.items():
        model = make_model("xgboost", 0, {"minutes": 3.0, "formula": name == "formula"})
        model.fit(taught[name])
        model.save(path)
    return paths


def shuffle_labels(table: TrainingTable, seed: int) -> TrainingTable:
    """Return the table with the latencies shuffled within each task."""
    rng, latency = np.random.default_rng(seed), table.log_latency.copy()
    order = np.lexsort((rng.random(len(table)), ~table.valid, table.task))
    latency[np.lexsort((~table.valid, table.task))] = table.log_latency[order]
    return replace(table, log_latency=latency)
