"""Search for good schedules: the interface of a tuner, the tuning loop and the database of trials.

A trial is one measured config. A config is a point of the search space, given by one index per
knob.

    from tilewright.flows.tuning import tune          # runs the tuning rounds
    from tilewright.models import make_explorer       # builds a tuner with its learned models
    from tilewright.search import TrialStore

    explorer = make_explorer("ml2tuner", {"alpha": 1.0})
    with TrialStore(path) as store:                   # optional: makes the run resumable
        for round in tune(target, workload, explorer, trials=64, batch=8, seed=0, store=store):
            print(round.index, round.best_cycles, round.lowered, round.failed_compiles)

`flows.tuning` executes the steps of a round (functions of `search.round_steps`) through a runner
(`search.runner`). Each step takes a task, the session of this task and the batch of the round:

    task = make_task(target, workload, explorer, seed)
    session = Session.start(task)
    done = tune_round(run, task, session, n)             # a Round, or None: the space is exhausted
    session = done.session

`models.save_state(state, folder)` and `models.load_state(folder)` keep the learned models in native
formats. The trial store is sufficient to resume a run: `StoredRun.finished_rounds` returns the
rounds from which the session's `History` is rebuilt. `read_store(folder)` opens the trials of an
output directory for reading; its method `frame()` returns a data frame with the columns of
`trials.parquet`. `registered_tuners()` lists the tuners with their options and summaries. If a
`StoredRun` is created with `shared=True`, several processes can work on one workload.
"""

from tilewright.search.explorer import (
    BaseExplorer,
    BatchChoice,
    Candidates,
    Explorer,
    ExplorerState,
)
from tilewright.search.history import History
from tilewright.search.problem import Problem
from tilewright.search.registry import (
    OptionError,
    Options,
    Registration,
    create,
    register,
    registered_tuners,
)
from tilewright.search.round_steps import Known, Trial, model_errors
from tilewright.search.rounds import Round, TrialRequest
from tilewright.search.run_record import FinishedRound, StoredRun, recorded_batch
from tilewright.search.runner import LocalRunner
from tilewright.search.session import Batch, Session
from tilewright.search.task import (
    GivenTask,
    RunKey,
    Task,
    make_task,
    problem_of,
    run_id,
    shared_key,
)
from tilewright.search.trial_store import (
    RunInUse,
    TrialStore,
    TrialStoreError,
    open_store,
    read_store,
)

__all__ = [
    "BaseExplorer",
    "Batch",
    "BatchChoice",
    "Candidates",
    "Explorer",
    "ExplorerState",
    "FinishedRound",
    "GivenTask",
    "History",
    "Known",
    "LocalRunner",
    "OptionError",
    "Options",
    "Problem",
    "Registration",
    "Round",
    "RunInUse",
    "RunKey",
    "Session",
    "StoredRun",
    "Task",
    "Trial",
    "TrialRequest",
    "TrialStore",
    "TrialStoreError",
    "create",
    "make_task",
    "model_errors",
    "open_store",
    "problem_of",
    "read_store",
    "recorded_batch",
    "register",
    "registered_tuners",
    "run_id",
    "shared_key",
]  # fmt: skip
