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
from tilewright.search import Session, StoredRun, TrialStore
from tilewright.tuning.tuning_task import TuningTask


def work(spec: Path, number: int) -> None:
    """Tune all studies beside the others, beginning at this worker's share of them. Raises what
    `flows.tuning.tune_shared` raises."""
    about = json.loads(spec.read_text())
    studies = [TuningTask.from_json(values) for values in about["studies"]]
    first = number * len(studies) // about["workers"]
    place, folder = about["store"]
    with TrialStore(place if folder else Path(place), folder, own=False) as store:
        for each in [*range(first, len(studies)), *range(first)]:
            setting = studies[each].setting
            record = StoredRun(
                store, studies[each].store_key, setting.problem.space,
                other_runs=setting.target.deterministic, shared=True,
            )  # fmt: skip
            session = Session(setting, load_state(spec.parent / str(each)))
            for _ in tune_rounds(session, record, trials=about["trials"], batch=about["batch"]):
                pass


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    work(Path(sys.argv[2]), int(sys.argv[3]))
