"""Finds good schedules: what a tuner is, the tuning loop, the record of every trial.

    from tilewright.flows.tuning import tune          # the rounds, as consecutive steps
    from tilewright.models import make_explorer       # tuners with learned models built in
    from tilewright.search import Ledger

    explorer = make_explorer("ml2tuner", {"alpha": 1.0})
    with Ledger(path) as ledger:                      # optional: resume, crash safety
        for round in tune(target, workload, explorer, trials=64, batch=8, seed=0, ledger=ledger):
            print(round.index, round.best_cycles, round.lowered, round.failed_compiles)

`flows.tuning` calls the steps of a round (`search.round_steps`, functions on plain data) through a
runner (`search.runner`). A `Session` keeps what they take and give:

    session = Session(setting_of(target, workload, explorer, seed))
    proposal = propose_batch(session, n)             → Proposal; None: the space is exhausted
    proposal, measured = measure_batch(session, proposal, known)
    done = session.finish(proposal, measured)        → Round; session.history goes on
    state = learn(session)                           → what the tuner knows now

`models.save_state(state, folder)` and `models.load_state(folder)` keep the learned models in native
formats. `history` is arrays, and a ledger's records of a run (`read(path).run(key).finished()`)
rebuild it. `read(path)` reads any ledger without a lease; its `.frame()` has the columns of
`trials.parquet`. `registered_tuners()` lists what is registered, with option tables and summaries.
`SharedRecord` lets several processes work on one workload.
"""

from tilewright.search.explorer import (
    BaseExplorer,
    BatchChoice,
    Candidates,
    Explorer,
    ExplorerState,
    History,
)
from tilewright.search.file_lock import LeaseHeld, writer
from tilewright.search.ledger import Contents, Ledger, LedgerError, read
from tilewright.search.problem import Problem
from tilewright.search.record import Record, SoloRecord
from tilewright.search.registry import (
    OptionError,
    Options,
    Registration,
    create,
    register,
    registered_tuners,
)
from tilewright.search.round_steps import Batch, Known, Trial, model_errors
from tilewright.search.run_ledger import FinishedRound, RunKey, RunLedger, RunRecords
from tilewright.search.runner import LocalRunner, Result
from tilewright.search.session import Proposal, Round, Session, TrialRequest
from tilewright.search.setting import Setting, problem_of, run_id, setting_of
from tilewright.search.shared_ledger import SharedRecord, shared_key

__all__ = [
    "BaseExplorer", "Batch", "BatchChoice", "Candidates", "Contents", "Explorer", "ExplorerState",
    "FinishedRound", "History", "Known", "LeaseHeld", "Ledger", "LedgerError", "LocalRunner",
    "OptionError", "Options", "Problem", "Proposal", "Record", "Registration", "Result", "Round",
    "RunKey", "RunLedger", "RunRecords", "Session", "Setting", "SharedRecord", "SoloRecord",
    "Trial", "TrialRequest", "create", "model_errors", "problem_of", "read", "register",
    "registered_tuners", "run_id", "setting_of", "shared_key", "writer",
]  # fmt: skip
