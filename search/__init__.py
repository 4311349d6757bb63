"""Finding good schedules: what a tuner is, the tuning loop, the record of every trial.

    from models import make_explorer                  # tuners with learned models built in
    from search import Ledger, tune

    explorer = make_explorer("ml2tuner", {"alpha": 1.0})
    with Ledger(path) as ledger:                      # optional: resume, crash safety
        for round in tune(target, workload, explorer, trials=64, batch=8, seed=0, ledger=ledger):
            print(round.index, round.best_cycles, round.lowered, round.failed_compiles)

The same round for who wants to look between the stages, or run each elsewhere (`search.engine`,
`search.performers`; the stages themselves are functions on plain data, `search.stages`):

    session = Session(setting_of(target, workload, explorer, seed))
    proposal = session.propose(n)                    → Proposal; None: the space is exhausted
    proposal, measured = session.measure(proposal, known)
    done = session.finish(proposal, measured)        → Round; session.history, session.state go on

`models.save_state(state, folder)` and `models.load_state(folder)` keep the learned models in native
formats; `history` is arrays, and what a ledger holds of a run (`read(path).run(key).finished()`)
rebuilds it. `read(path)` reads any ledger without a lease; its `.frame()` has the columns of
`trials.parquet`. `tuners()` lists what is registered, with option tables and summaries.
`tune_shared` lets several processes work on one workload.
"""

from search.engine import Proposal, Record, Round, Session, SoloRecord, rounds
from search.explorer import BaseExplorer, Candidates, Choice, Explorer, ExplorerState, History
from search.lease import LeaseHeld, writer
from search.ledger import Contents, Ledger, LedgerError, read
from search.loop import run_id, tune
from search.performers import InProcess, Setting, Stages, setting_of
from search.problem import Problem
from search.registry import OptionError, Options, Registration, create, register, tuners
from search.run_records import FinishedRound, RunKey, RunLedger, RunRecords
from search.sharing import SharedRecord, shared_key, tune_shared
from search.stages import Batch, Known, Trial, model_errors, problem_of

__all__ = [
    "BaseExplorer",
    "Batch",
    "Candidates",
    "Choice",
    "Contents",
    "Explorer",
    "ExplorerState",
    "FinishedRound",
    "History",
    "InProcess",
    "Known",
    "LeaseHeld",
    "Ledger",
    "LedgerError",
    "OptionError",
    "Options",
    "Problem",
    "Proposal",
    "Record",
    "Registration",
    "Round",
    "RunKey",
    "RunLedger",
    "RunRecords",
    "Session",
    "Setting",
    "SharedRecord",
    "SoloRecord",
    "Stages",
    "Trial",
    "create",
    "model_errors",
    "problem_of",
    "read",
    "register",
    "rounds",
    "run_id",
    "setting_of",
    "shared_key",
    "tune",
    "tune_shared",
    "tuners",
    "writer",
]  # fmt: skip
