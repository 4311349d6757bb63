"""Steps that record a run: its parameters, its rounds and its results.

A runner that tracks runs (`tasks.runner_prefect`) executes these steps and also logs to MLflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewright.core.options import OptionsError
from tilewright.search import ExplorerState, Round, Session
from tilewright.targets.display_names import layer
from tilewright.tuning.earlier_run import first_data, holds_run, read_earlier_run
from tilewright.tuning.events import (
    Listener,
    NetworkFound,
    Note,
    RoundDone,
    WorkloadFound,
    WorkloadsAdded,
    WorkloadTuned,
)
from tilewright.tuning.fusion_interface import Decided
from tilewright.tuning.network import Subgraph, TuningNetwork
from tilewright.tuning.options import CHAMPION, TuningOptions
from tilewright.tuning.outputs import TunedNetwork, summary_of, target_row, write_outputs
from tilewright.tuning.results import TunedWorkload
from tilewright.tuning.run_metadata import replacement_note, write_run
from tilewright.tuning.task_scheduler import StopGain
from tilewright.tuning.tuning_task import TuningTask, tuning_task_of


def start_sessions(
    options: TuningOptions, subgraphs: Sequence[Subgraph]
) -> list[tuple[TuningTask, Session]]:
    """Create the task of each workload and its session before the first trial.

    Args:
        options: options of the run. With `warm_start`, the sessions contain what the tuner learns
            from the trials of an earlier run.
        subgraphs: the workloads.

    Returns:
        Pairs of task and session, in the order of `subgraphs`.

    Raises:
        OptionsError: the run should start from a champion, a registered model that won an earlier
            comparison. Only a tracked run can do this.
        EarlierRunError: the run should start with trials of an earlier run that do not fit it.
    """
    if options.warm_start == CHAMPION:
        raise OptionsError(
            f"--warm-start {CHAMPION} needs the MLflow registry, which --bare switches off; "
            "leave out --bare"
        )
    tasks = tasks_of(options, subgraphs)
    state: ExplorerState | None = None
    if tasks and options.warm_start and holds_run(Path(options.warm_start)):
        state = first_data(read_earlier_run(Path(options.warm_start)), tasks)
    return [(task, Session.start(task, state)) for task in tasks]


def tasks_of(options: TuningOptions, subgraphs: Sequence[Subgraph]) -> list[TuningTask]:
    """Create the task of each workload.

    Args:
        options: options of the run.
        subgraphs: the workloads.

    Raises:
        TilewrightError: a task cannot be created, as in `tuning_task_of`.
    """
    return [
        tuning_task_of(options, subgraph.workload, subgraph.names, subgraph.count)
        for subgraph in subgraphs
    ]


def log_parameters(
    options: TuningOptions, network: TuningNetwork, tasks: Sequence[TuningTask], emit: Listener
) -> None:
    """Write `run.json`, which identifies the run in the output directory, and emit `NetworkFound`.

    If the run differs from the directory's previous run, the previous summary is deleted.

    Args:
        options: options of the run.
        network: the network and the target.
        tasks: tasks of the workloads.
        emit: receives the event, and before it a note if the results of another tuner or seed are
            replaced.

    Raises:
        OSError: the file cannot be written.
    """
    if note := replacement_note(options):
        emit(Note(note))
    write_run(options, network.subgraphs, tasks)
    result = _named(network.subgraphs)
    emit(NetworkFound(network.model.name, network.target.name, result))


def log_workloads_added(subgraphs: Sequence[Subgraph], emit: Listener) -> None:
    """Emit an event about workloads that will be tuned in addition.

    Args:
        subgraphs: the additional workloads.
        emit: receives the event.
    """
    emit(WorkloadsAdded(_named(subgraphs)))


def log_round(task: TuningTask, done: Round, emit: Listener) -> None:
    """Emit an event with the result of a round.

    The event also contains the workload's number of trials so far and the fraction of valid trials.

    Args:
        task: the workload, target and tuner.
        done: the round.
        emit: receives the event.
    """
    history = done.session.history
    valid_share = float(history.valid.mean())
    emit(RoundDone(task.workload.id, done.index, len(history), done.best, valid_share))


def log_workload(
    options: TuningOptions, task: TuningTask, tuned: TunedWorkload, session: Session, emit: Listener
) -> None:
    """Emit an event with the result of tuning a workload.

    A runner that tracks runs also logs the result and the learned models to MLflow.

    Args:
        options: options of the run.
        task: the workload, target and tuner.
        tuned: the result.
        session: final session of the workload, which contains the learned models.
        emit: receives the event.
    """
    emit(WorkloadTuned(tuned))


def log_network(
    options: TuningOptions,
    network: TuningNetwork,
    tuned: Sequence[TunedWorkload],
    wall: float,
    sharing: StopGain | None,
    decided: Decided | None,
) -> TunedNetwork:
    """Write the files of the output directory (`tuning.outputs`).

    Args:
        options: options of the run.
        network: the network and the target.
        tuned: the tuned workloads.
        wall: duration of the run in seconds.
        sharing: summary entry about shared trials, if workloads shared their trials.
        decided: decision about fusion, if there was one.

    Returns:
        The tuned network with its summary.

    Raises:
        OSError: a file cannot be written.
    """
    summary = summary_of(options, network, tuned, sharing, decided)
    summary["wall_seconds"] = round(wall, 3)
    tuned_network = TunedNetwork(summary, tuple(tuned), decided)
    write_outputs(options.folder, target_row(options, network.target), tuned_network)
    return tuned_network


def _named(subgraphs: Sequence[Subgraph]) -> tuple[WorkloadFound, ...]:
    return tuple(
        WorkloadFound(
            subgraph.workload.id, layer(subgraph.names, subgraph.workload), subgraph.count
        )
        for subgraph in subgraphs
    )
