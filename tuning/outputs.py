"""The files a run leaves in its output folder, each written at the end and at once.

summary.json      what every workload costs by default, tuned and at best
schedules.json    the chosen schedule of every workload; equal runs give equal bytes
trials.parquet    one row a trial
convergence.png   best cycles over trials
ledger.jsonl      the record the run resumes from (`search.ledger`)
"""

from __future__ import annotations

import io
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from search import Contents, read
from search.records import Record
from targets.files import Json, write_atomically
from tasks.outcome import Outcome

LEDGER = "ledger.jsonl"
SUMMARY = "summary.json"
SCHEDULES = "schedules.json"
TRIALS = "trials.parquet"
CONVERGENCE = "convergence.png"
SCHEDULES_VERSION = 1


def totals(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Cycles of one inference: each workload times its count."""
    return {
        "default_cycles": sum(o.count * o.default.cycles for o in outcomes),
        "tuned_cycles": sum(o.count * o.chosen.cycles for o in outcomes),
        "roofline_cycles": sum(o.count * o.roofline_cycles for o in outcomes),
    }


def write_schedules(
    folder: Path, network: str, target: dict[str, Json], outcomes: Sequence[Outcome]
) -> None:
    """`target` holds the name, fingerprint and specification the schedules are for."""
    document = {
        "version": SCHEDULES_VERSION,
        "network": network,
        "target": target,
        "schedules": [outcome.schedule() for outcome in outcomes],
    }
    write_atomically(folder / SCHEDULES, _pretty(document))


def write_trials(folder: Path, outcomes: Sequence[Outcome]) -> None:
    write_atomically(folder / TRIALS, parquet(trials_of(folder, outcomes)))


def write_summary(folder: Path, summary: dict[str, Json]) -> None:
    """Last of all: a folder with a summary is complete."""
    write_atomically(folder / SUMMARY, _pretty(summary))


def trials_of(folder: Path, outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """The trials of these runs, one row each, in the order of the network."""
    contents = read(folder / LEDGER)
    by_run: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in contents.records:
        by_run[record["workload"], record["target"], record["run"]].append(record)
    tables = [Contents(by_run[o.study.ledger_key]).frame().iloc[: o.trials] for o in outcomes]
    return pd.concat(tables, ignore_index=True)


def parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _pretty(document: Json) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + os.linesep).encode()
