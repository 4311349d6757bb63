"""Selection of the best schedule in an output directory, whichever run found it.

Runs with different tuners, seeds or numbers of trials share an output directory and its trial
store. If a run ends with a slower schedule than an earlier run had, it keeps the earlier schedule,
and its summary says which run found it.
"""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np

from tilewright.core.files import Json, as_int, as_object, as_text, canonical
from tilewright.core.user_text import printable
from tilewright.search import History, StoredRun, Trial, TrialStore
from tilewright.search.events import Listener, Note
from tilewright.search.round_steps import trial_at
from tilewright.search.trial_rows import trial_of
from tilewright.search.validation_records import TRIAL
from tilewright.targets.capabilities import Latency
from tilewright.targets.display_names import layer
from tilewright.tuning.results import FoundBy, Schedule, faster
from tilewright.tuning.tuning_task import TuningTask
from tilewright.tuning.verification import latency_of_trial, reproduces


def describe_run(store: TrialStore, task: TuningTask) -> None:
    """Record in the trial store which tuner and seed made a run.

    The store identifies the run only by a digest of these settings.

    Args:
        store: the trial store.
        task: a task of the run.
    """
    name = _note_name(store, task.store_key[2])
    if not store.note(name):
        about: dict[str, Json] = {"tuner": task.tuner, "seed": task.seed}
        store.note(name, canonical(about).decode())


def best_known(
    task: TuningTask, record: StoredRun, chosen: Schedule | None, timed: dict[int, Trial],
    emit: Listener,
) -> Schedule | None:  # fmt: skip
    """Return the fastest schedule for a workload that any run in the trial store has found.

    This is for deterministic targets, on which a recorded latency can be checked exactly.

    Args:
        task: the workload and the run that ends.
        record: trials of the run; its store also holds the trials of other runs.
        chosen: the schedule that the run ends with; it is returned unless another run found a
            faster schedule.
        timed: trials that were measured again, by flat index; this function adds the trials that it
            measures.
        emit: receives notes about trials whose recorded latency differs from the present one. Such
            trials are corrected in the store.
    """
    space, wrong = task.problem.space, dict[int, Trial]()
    for row in record.fastest():
        latency = latency_of_trial(trial_of(row))
        if latency is None or (chosen is not None and not faster(latency, chosen.latency)):
            break
        config = np.array([row["config"]], dtype=np.int32)
        flat = int(space.ravel(config)[0])
        if flat not in timed:
            measured = task.target.measure(task.target.lower(task.workload, config))
            timed[flat] = trial_at(measured, 0)
        now = latency_of_trial(timed[flat])
        if now is not None and reproduces(task.target, latency, now):
            chosen = _schedule(task, tuple(row["config"]), latency)
            break
        wrong[flat] = timed[flat]
    if wrong:
        count = record.correct(wrong)
        emit(
            Note(
                f"{task.workload}: ignored {count} from other runs, because their recorded "
                f"latency differs from what {task.target_name} measures now; the new "
                "measurements are used instead"
            )
        )
    return chosen


def earlier_winners(task: TuningTask, record: StoredRun) -> list[Schedule]:
    """Return the schedules that won the final choices of earlier runs, on a target with noise.

    The next final choice measures these schedules again, together with the run's own best trials.

    Args:
        task: the workload.
        record: trials of the run, in the store that also holds the trials of earlier runs.
    """
    if task.target.deterministic:
        return []
    result = {config: latency_of_trial(trial) for config, trial in record.winners().items()}
    return [
        _schedule(task, config, latency)
        for config, latency in result.items()
        if latency is not None
    ]


def run_that_found(
    task: TuningTask, record: StoredRun, history: History, chosen: Schedule | None, emit: Listener
) -> FoundBy | None:
    """Return the earlier run that found the chosen schedule, and report it to `emit`.

    Args:
        task: the workload.
        record: trials of the run, in the store that also holds the trials of earlier runs.
        history: trials of this run.
        chosen: the chosen schedule, if there is one.
        emit: receives a note about the earlier run.

    Returns:
        The run, with tuner and seed None if an earlier version made it. None if the schedule is
        among the trials of this run or is not a trial.
    """
    if chosen is None or chosen.source != TRIAL:
        return None
    if (history.configs == np.array(chosen.config)).all(axis=1).any():
        return None
    first_run = record.first_run_of(chosen.config)
    if first_run is None:
        return None
    run, trials = first_run
    tuner: str | None = None
    seed: int | None = None
    who = "an earlier run"
    with suppress(ValueError, KeyError):
        about = as_object(json.loads(record.store.note(_note_name(record.store, run)) or "{}"))
        tuner, seed = printable(as_text(about["tuner"])), as_int(about["seed"])
        who = f"tuner {tuner} with seed {seed}"
    name = layer(task.names, task.workload)
    emit(
        Note(f"{name}: kept the schedule that {who} found in {trials} trials, because it is faster")
    )
    return {"tuner": tuner, "seed": seed, "trials": trials}


def _schedule(task: TuningTask, config: tuple[int, ...], latency: Latency) -> Schedule:
    space = task.problem.space
    name = task.space_name or space.name
    return Schedule(TRIAL, name, config, space.describe(config), latency)


def _note_name(store: TrialStore, run: str) -> str:
    # Each output directory in a database has notes of its own, because it locks only itself.
    return f"run {run} {store.folder}".rstrip()
