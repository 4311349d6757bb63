"""Measures the time that Model P's Gaussian process takes for a proposal.

    python -m benchmarks.tuners.gaussian_speed

Prints the median processor time of fitting the process to some trials, and of choosing a batch
among some candidates, as Model P of `ml2tuner` does in each round. The command takes a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated

import numpy as np
import typer

from tilewright.core.thread_pools import BLAS_ON_ONE_THREAD
from tilewright.models import ModelLibrary
from tilewright.targets.features import Features


def main(
    trials: Annotated[int, typer.Option(help="Number of rows that the model is fitted to.")] = 500,
    candidates: Annotated[int, typer.Option(help="Number of candidates.")] = 4096,
    columns: Annotated[int, typer.Option(help="Number of features per row.")] = 24,
    batch: Annotated[int, typer.Option(help="Number of rows that are chosen.")] = 8,
    repeats: Annotated[int, typer.Option(help="Number of timed proposals.")] = 5,
) -> None:
    """Time a fit and a proposal on random rows with a smooth target."""
    rng = np.random.default_rng(0)
    names = [f"column {k}" for k in range(columns)]
    weight = rng.normal(size=columns) * np.exp(-np.arange(columns) / 4.0)
    x, pool = rng.normal(size=(trials, columns)), rng.normal(size=(candidates, columns))
    y = np.sin(x @ weight) + 0.3 * (x @ weight) + 0.01 * rng.normal(size=trials)
    known, asked = Features.from_names(x, names), Features.from_names(pool, names)
    process, zeros = ModelLibrary().surrogate(0), np.zeros(candidates)
    with BLAS_ON_ONE_THREAD:
        process.fit(known, y)  # loads libraries
        fit = _milliseconds(lambda: process.fit(known, y), repeats)
        best = float(y.min())
        chosen = _milliseconds(lambda: process.propose(asked, zeros, best, zeros, batch), repeats)
    print(f"fit to {trials} trials: {fit:.0f} ms")
    print(f"proposal of {batch} of {candidates} candidates: {chosen:.0f} ms")


def _milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median processor time of a call."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        taken.append(1000.0 * (time.process_time() - start))
    return median(taken)


if __name__ == "__main__":
    typer.run(main)
