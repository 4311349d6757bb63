"""Measures what a model that was trained on other hardware saves on new accelerators.

    python -m benchmarks.transfer.compare --quick     # one spec, network and seed
    python -m benchmarks.transfer.compare --out FILE  # hours; resumes from FILE

The command first builds a dataset and trains models, unless they exist below `--folder` or are
given as options. No preset is part of a dataset, so the benchmark tunes for presets. It has three
parts: `tuning` (`benchmarks.transfer.whole_networks`), its short form `layers`
(`benchmarks.transfer.single_layers`), and `accuracy` (`benchmarks.transfer.accuracy`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.results import KeptRows, row_arguments
from benchmarks.transfer import accuracy as transfer_accuracy
from benchmarks.transfer import single_layers as transfer_layers
from benchmarks.transfer import whole_networks as transfer_tuning
from tilewright.evaluation.datasets.folder import digest_of, read_table
from tilewright.evaluation.datasets.options import DatasetOptions, TrainingOptions
from tilewright.evaluation.datasets.training import (
    check_training,
    fit_model,
    judge_model,
    store_model,
)
from tilewright.flows.dataset import build_dataset
from tilewright.search import LocalRunner

PARTS = {"tuning": transfer_tuning, "layers": transfer_layers, "accuracy": transfer_accuracy}


def main() -> None:
    """Measure what is missing in the file, and print the summary.

    The file is written after each figure.
    """
    parser = row_arguments(__doc__, "built/transfer.json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("built/transfer"))
    parser.add_argument(
        "--dataset", type=Path, help="folder of the dataset; built below --folder by default"
    )
    parser.add_argument(
        "--model", type=Path, help="folder of the models; trained below --folder by default"
    )
    parser.add_argument("--rows", type=int, help="rows of the dataset that is built")
    parser.add_argument("--minutes", type=float, help="time limit per training")
    parser.add_argument("--parts", default="", help="parts to run, of accuracy,layers,tuning")
    parser.add_argument("--targets", default="", help="names of targets, separated by commas")
    parser.add_argument("--networks", default="", help="names of networks, separated by commas")
    parser.add_argument("--tuners", default="", help="names of tuners, separated by semicolons")
    parser.add_argument("--kinds", default="", help="kinds of models, for the part accuracy")
    parser.add_argument("--seeds", type=int)
    parser.add_argument(
        "--layers",
        type=int,
        default=4,
        help="number of layers drawn per target, for the part layers",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="number of networks that are tuned at the same time"
    )
    options = parser.parse_args()
    rows = KeptRows(options.redraw or options.out, PARTS)
    parts = options.parts.split(",") if options.parts else list(PARTS)
    if options.redraw is not None:
        for name in parts:
            print(PARTS[name].summary(rows.rows[name]))
        return
    quick = options.quick
    options.rows = options.rows or (60_000 if quick else 2_000_000)
    options.minutes = options.minutes or (1.5 if quick else 30.0)
    options.seeds = options.seeds or (1 if quick else 10)
    options.dataset = options.dataset or _dataset(options.folder, options.rows)
    options.kinds = options.kinds.split(",") if options.kinds else []
    if set(parts) & {"tuning", "layers"}:
        options.model = options.model or _model(options)
    for name, part in PARTS.items():
        if name in parts:
            part.measure(options, rows)
            print(part.summary(rows.rows[name]), flush=True)


def _dataset(folder: Path, rows: int) -> Path:
    path = folder / f"dataset-{rows}"
    build_dataset(
        LocalRunner(), path, DatasetOptions(rows=rows, cpu_rows=0)
    )  # what is there already is not made again
    return path


def _model(options: argparse.Namespace) -> Path:
    path: Path = options.folder / f"mlp-{digest_of(options.dataset)[:8]}-{options.minutes:g}"
    if not path.exists():
        _train(options.dataset, "mlp", "by_target", options.minutes, path)
    return path


def _train(dataset: Path, kind: str, by: str, minutes: float, out: Path) -> dict[str, Any]:
    """Train a model as `tilewright model train` does, and return its metrics."""
    training = check_training(
        TrainingOptions(dataset=str(dataset), out=str(out), kind=kind, split=by, minutes=minutes)
    )
    fitted = fit_model(training, read_table(dataset))
    metrics = judge_model(training, fitted, digest_of(dataset))
    store_model(training, fitted)
    return dict(metrics)


if __name__ == "__main__":
    main()
