"""Finding good schedules: what a tuner is, the tuning loop, the record of every trial.

    from models import make_explorer                  # tuners with learned models built in
    from search import Ledger, tune

    explorer = make_explorer("ml2tuner", {"alpha": 1.0})
    with Ledger(path) as ledger:                      # optional: resume, crash safety
        for round in tune(target, workload, explorer, trials=64, batch=8, seed=0, ledger=ledger):
            print(round.index, round.best_cycles, round.lowered, round.failed_compiles)

The same round, stage by stage, for a workflow engine (`search.stages`, plain data in and out):

    problem = problem_of(target, workload, seed)
    state, history = ExplorerState(), History.empty(problem.space)
    named   = generate_candidates(explorer, problem, state, history, n)    → Candidates
    kept    = filter_candidates(explorer, problem, state, history, named, n) → Candidates
    lowered = lower_candidates(target, problem, kept)                        → Lowered
    batch   = choose_candidates(explorer, problem, state, history, lowered, n) → Batch
    measured = measure_batch(target, problem, batch.rows, known)            → Measurements
    history = extend_history(history, batch, measured)                      → History
    state   = retrain(explorer, problem, state, history)                   → ExplorerState

An empty `kept` means the space is exhausted. `models.save_state(state, folder)` and
`models.load_state(folder)` keep the learned models in native formats; `history` is arrays, and a
`RunLedger` (`ledger.run(workload_id, fingerprint, run_id(explorer, seed, batch))`) rebuilds it.
`read(path)` reads any ledger without a lease; its `.frame()` has the columns of `trials.parquet`.
`tuners()` lists what is registered, with option tables and summaries.
"""

from search.explorer import (
    BaseExplorer,
    Candidates,
    Choice,
    Explorer,
    ExplorerState,
    History,
    Problem,
)
from search.lease import LeaseHeld, writer
from search.ledger import Contents, FinishedRound, Ledger, LedgerError, RunLedger, read
from search.loop import Round, Session, run_id, tune
from search.registry import OptionError, Options, Registration, create, register, tuners
from search.sharing import SharedRound, tune_shared
from search.stages import (
    Batch,
    choose_candidates,
    extend_history,
    filter_candidates,
    generate_candidates,
    lower_candidates,
    measure_batch,
    model_errors,
    problem_of,
    retrain,
)

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
    "LeaseHeld",
    "Ledger",
    "LedgerError",
    "OptionError",
    "Options",
    "Problem",
    "Registration",
    "Round",
    "RunLedger",
    "Session",
    "SharedRound",
    "choose_candidates",
    "create",
    "extend_history",
    "filter_candidates",
    "generate_candidates",
    "lower_candidates",
    "measure_batch",
    "model_errors",
    "problem_of",
    "read",
    "register",
    "retrain",
    "run_id",
    "tune",
    "tune_shared",
    "tuners",
    "writer",
]  # fmt: skip
