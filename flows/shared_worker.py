"""Runs one of several processes that tune the same workloads (see `tuning.worker_processes`).

python -m tilewright.flows.shared_worker TETHER SPEC PLACE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tilewright.core.child_process import die_with_parent
from tilewright.flows.tuning import tune_rounds
from tilewright.models import load_state
from tilewright.search import Session, SharedRecord
from tilewright.tuning.tuning_task import TuningTask


def work(spec: Path, place: int) -> None:
    """Tune all studies beside the others, beginning at this worker's share of them. Raises what
    `flows.tuning.tune_shared` raises."""
    about = json.loads(spec.read_text())
    studies = [TuningTask.from_json(values) for values in about["studies"]]
    first = place * len(studies) // about["workers"]
    for each in [*range(first, len(studies)), *range(first)]:
        setting = studies[each].setting
        record = SharedRecord(setting, Path(about["ledger"]), studies[each].ledger_key)
        session = Session(setting, load_state(spec.parent / str(each)))
        for _ in tune_rounds(session, record, trials=about["trials"], batch=about["batch"]):
            pass


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    work(Path(sys.argv[2]), int(sys.argv[3]))
