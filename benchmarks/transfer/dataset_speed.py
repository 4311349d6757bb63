"""Measures how fast datasets are made and read.

    python -m benchmarks.transfer.dataset_speed [--rows N] [--json FILE]

Builds a dataset of simulated accelerators in a folder that is removed afterwards, without Prefect:
the plan (networks are imported for it), then the rows, by elapsed and by processor time of all
threads; and reads it back, all of it and a tenth. With few rows a cell has few, and what is done
once a cell counts for more: the larger `--rows`, the nearer to the speed of 2,000,000.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from tilewright.core.files import write_atomically
from tilewright.evaluation.datasets.build import PlannedFile
from tilewright.evaluation.datasets.folder import read_table
from tilewright.evaluation.datasets.options import DatasetOptions
from tilewright.flows.dataset import build_dataset
from tilewright.search import LocalRunner
from tilewright.search.events import Event


def figures(rows: int, seed: int = 0) -> dict[str, float]:
    """Rows, seconds and bytes of a dataset of so many rows."""
    planned = [0.0, 0.0]

    def hear(event: Event) -> None:
        if isinstance(event, PlannedFile):
            planned[:] = time.perf_counter(), time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        about = build_dataset(
            LocalRunner(hear), Path(folder), DatasetOptions(rows=rows, cpu_rows=0, seed=seed)
        )
        wall, cpu = time.perf_counter() - planned[0], time.process_time() - planned[1]
        size = sum(file.bytes for file in about.files)
        reading = time.perf_counter()
        valid = float(read_table(Path(folder)).valid.mean())
        reading, tenth = time.perf_counter() - reading, time.perf_counter()
        read_table(Path(folder), rows=rows // 10)
        tenth = time.perf_counter() - tenth
    return {
        "rows": rows,
        "valid_share": valid,
        "plan_seconds": planned[0] - start,
        "build_seconds": wall,
        "build_cpu_seconds": cpu,
        "rows_per_second": rows / wall,
        "rows_per_cpu_second": rows / cpu,
        "bytes": size,
        "bytes_per_row": size / rows,
        "read_seconds": reading,
        "rows_read_per_second": rows / reading,
        "read_tenth_seconds": tenth,
        "cores": os.cpu_count() or 1,
    }


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = figures(options.rows, options.seed)
    for name, value in found.items():
        print(f"{name:22} {value:16,.3f}")
    if options.json is not None:
        write_atomically(options.json, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
