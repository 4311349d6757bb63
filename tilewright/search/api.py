"""A tuning run as a plain loop: no server, no files but the ledger, no terminal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from tilewright.search.explorer import Explorer, ExplorerState
from tilewright.search.ledger import Ledger
from tilewright.search.setting import setting_of
from tilewright.search.tuning_loop import Round, Session, SoloRecord, rounds
from tilewright.targets.base import Target
from tilewright.targets.workload import Workload


def tune(
    target: Target,
    workload: Workload,
    explorer: Explorer,
    *,
    trials: int,
    batch: int = 8,
    seed: int = 0,
    ledger: Ledger | None = None,
    state: ExplorerState | None = None,
) -> Iterator[Round]:
    """Tune one workload; yields each round when it is done, those a ledger already holds first.

    Stops after `trials` measurements or when the explorer has nothing left. `state` warm-starts
    the explorer. Raises `TilewrightError` if `trials` or `batch` is below 1, `WorkloadError` if the
    target has no schedule for the workload, `LedgerError` and `LeaseHeld` as `Ledger.append`.
    """
    setting = setting_of(target, workload, explorer, seed)
    key = (workload.id, target.fingerprint, run_id(explorer, seed, batch))
    record = SoloRecord(setting, None if ledger is None else ledger.run(key))
    yield from rounds(Session(setting, state), record, trials=trials, batch=batch)


def run_id(explorer: Explorer, seed: int, batch: int) -> str:
    """What makes two runs the same run: the tuner, its options, the seed and the batch size."""
    options = explorer.options.model_dump(mode="json")
    text = json.dumps([explorer.name, options, seed, batch], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
