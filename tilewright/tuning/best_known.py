"""Selection of the best schedule that any run in an output directory has found.

Runs with different tuners, seeds or numbers of trials can share an output directory and its trial
store. If a run ends with a slower schedule than an earlier run, the earlier schedule is kept, and
the summary names the run that found it.
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
    """Store the tuner and the seed of a run in the trial store.

    Otherwise, the store identifies the run only by a digest of its settings.

    Args:
        store: the trial store.
        task: any task of the run.
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

    This function is for deterministic targets, on which a recorded latency can be checked exactly.
    Trials whose recorded latency is wrong are corrected in the store.

    Args:
        task: the workload and the run that is ending.
        record: trials of this run; its store also contains the trials of other runs.
        chosen: the schedule that this run has chosen. It is returned unless another run found a
            faster schedule.
        timed: trials that were measured again, by the flat index of their config. Trials that this
            function measures are added.
        emit: receives notes about trials whose recorded latency differs from the new measurement.

    Returns:
        The schedule; None only if `chosen` is None and no trial in the store can be reproduced.
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
    """Return the schedules that won the final choices of earlier runs of this workload.

    The next final choice measures these schedules again, together with the best trials of the run.
    The list is empty on a deterministic target, which needs no final choice.

    Args:
        task: the workload.
        record: trials of the run, in the store that also contains the trials of earlier runs.
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
    """Return the earlier run that found the chosen schedule, and emit a note about it.

    Args:
        task: the workload.
        record: trials of this run, in the store that also contains the trials of earlier runs.
        history: trials of this run.
        chosen: the chosen schedule, if there is one.
        emit: receives the note.

    Returns:
        The earlier run. Its tuner and seed are None if an earlier version of Tilewright made it.
        The result is None if this run measured the schedule itself, or if the schedule is not a
        trial.
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
    # The name includes the output directory, because a transaction locks only one directory.
    return f"run {run} {store.folder}".rstrip()
