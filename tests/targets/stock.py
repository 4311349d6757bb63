"""Reads recordings of the stock compiler: its complete template spaces and reference schedules."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from tilewright.targets.workload import Workload, parse_workload

FOLDER = Path(__file__).parents[1] / "data" / "tvm-vta"
TABLES = sorted(path.name.removesuffix(".csv.gz") for path in FOLDER.glob("*.csv.gz"))
REFERENCE = {row["layer"]: row for row in json.loads((FOLDER / "reference.json").read_text())}


def workload_of(layer: str) -> Workload:
    row = REFERENCE[layer]
    return parse_workload(
        f"conv2d:n=1,c={row['in_channels']},h={row['height']},w={row['width']},"
        f"o={row['out_channels']},k={row['kernel']},s={row['stride']},p={row['pad']}"
    )


def table_of(layer: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / f"{layer}.csv.gz", keep_default_na=False)
