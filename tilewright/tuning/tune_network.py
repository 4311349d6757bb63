"""Tuning a network from its file to its output folder: the order of the steps, and nothing else.
What is done for one of its workloads is in `tuning.tune_workload`.

Who performs the steps is put in: this process (`tuning.plain`), or tasks of a workflow engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Protocol

from tilewright.search import ExplorerState
from tilewright.targets.base import Target
from tilewright.targets.registry import kind_of, target_remarks
from tilewright.tuning.events import Listener, NetworkFound, Note, WorkloadFound, WorkloadsAdded
from tilewright.tuning.fusion_interface import Decided, ToDecide
from tilewright.tuning.network import (
    Extracted,
    Model,
    NetworkPart,
    Subgraph,
    TuningNetwork,
    lone_workload,
    those_of,
)
from tilewright.tuning.open_ledger import trials_of_folder
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.outputs import Summary
from tilewright.tuning.results import TunedWorkload
from tilewright.tuning.run_metadata import replaced, write_run
from tilewright.tuning.schedulability import check_fits
from tilewright.tuning.task_scheduler import SharingRules, StopGain, TaskState
from tilewright.tuning.thread_pool import each_of
from tilewright.tuning.tune_workload import WorkloadJob
from tilewright.tuning.tuning_task import TuningTask, one_owner, target_of, tuning_task_of
from tilewright.tuning.turns import TaskScheduler
from tilewright.tuning.worker_processes import worker_pool

MOST_AT_A_TIME = 64
"""Workloads in threads of one command that has a cluster."""


class NetworkSteps(Protocol):
    """Performs what is done once for a network."""

    def opened(self, options: TuningOptions) -> None:
        """Called first, once the output folder is this run's alone."""
        ...

    def import_model(self, options: TuningOptions) -> Model:
        """Read the network (`tuning.network`)."""
        ...

    def extract_subgraphs(self, options: TuningOptions, model: Model, target: Target) -> Extracted:
        """What there is to tune in it (`tuning.network`)."""
        ...

    def found(self, options: TuningOptions, network: TuningNetwork) -> None:
        """Called before the first workload."""
        ...

    def start_of(self, study: TuningTask) -> tuple[TuningTask, ExplorerState]:
        """What the tuner knows of a workload, and the study that starts there: another than one
        that starts from nothing, with trials of its own."""
        ...

    def tune(self, job: WorkloadJob) -> TunedWorkload:
        """One workload: `tune_workload`, with whatever is around it."""
        ...

    def decide_fusion(self, asked: ToDecide) -> Decided:
        """Decide what runs together, of a run that was asked to."""
        ...

    def write(
        self,
        options: TuningOptions,
        network: TuningNetwork,
        tuned: Sequence[TunedWorkload],
        wall: float,
        sharing: StopGain | None,
        decided: Decided | None,
    ) -> Summary:
        """Write the output folder (`tuning.outputs`); `wall` is how many seconds it took, `sharing`
        what became of the trials if they were shared, `decided` what runs together if that was
        asked for."""
        ...


def tune_network(options: TuningOptions, steps: NetworkSteps, emit: Listener) -> Summary:
    """Tune every workload of a network. Returns what `summary.json` holds.

    Raises a `TilewrightError`: of the model's file, of the target's kind, `LeaseHeld` if another
    command works on the folder, `FolderTaken` if it holds another run, `UnknownLayer`,
    `NothingFits`, `LedgerError`, `WrongSchedule`; `OSError` for a disk that is full.
    """
    begin = time.perf_counter()
    target = target_of(options)
    for remark in target_remarks(options.target):
        emit(Note(remark))
    with trials_of_folder(options, emit) as trials:
        steps.opened(options)
        network = _network(options, target, steps)
        for reason in check_fits(target, [each.workload for each in network.subgraphs]):
            emit(Note(reason))
        steps.found(options, network)
        stop, found = threading.Event(), network.subgraphs
        starts = [steps.start_of(tuning_task_of(options, subgraph.workload)) for subgraph in found]
        if note := replaced(options):
            emit(Note(note))
        write_run(options, found, [study for study, _ in starts])
        emit(_found(network))
        jobs = [
            WorkloadJob(options, subgraph, study, state, trials.record_of, emit, stop)
            for subgraph, (study, state) in zip(found, starts, strict=True)
        ]
        with worker_pool(options, [(job.study, job.state) for job in jobs], emit):
            tuned, sharing = _tuned(options, jobs, steps, stop)
        if options.stop_gain is None:
            trials.arrange([study.ledger_key for study, _ in starts])
        decided = None
        if options.fusion:
            more = partial(_more_workloads, jobs[0], steps)
            decided = steps.decide_fusion(
                ToDecide(options, target, network.model.name, tuned, more, emit)
            )
        wall = time.perf_counter() - begin
        return steps.write(options, network, tuned, wall, sharing, decided)


def _more_workloads(
    like: WorkloadJob, steps: NetworkSteps, subgraphs: Sequence[Subgraph]
) -> list[TunedWorkload]:
    """Workloads that the network does not have as it is, tuned as those that it has."""
    starts = [steps.start_of(tuning_task_of(like.options, each.workload)) for each in subgraphs]
    like.emit(WorkloadsAdded(_named(subgraphs)))
    jobs = [
        replace(like, subgraph=subgraph, study=study, state=state, scheduled=None)
        for subgraph, (study, state) in zip(subgraphs, starts, strict=True)
    ]
    with worker_pool(like.options, [(job.study, job.state) for job in jobs], like.emit):
        return each_of(steps.tune, jobs, like.options.jobs, like.stop.set)


def _network(options: TuningOptions, target: Target, steps: NetworkSteps) -> TuningNetwork:
    """All workloads of the network, those of some layers, or one that is given as it is."""
    if options.workload:
        model, alone = lone_workload(options.workload, options.steps)
        part: NetworkPart = {
            "workload": str(alone.subgraphs[0].workload),
            "epilogue": options.steps,
        }
        return TuningNetwork(model, target, alone, part)
    model = steps.import_model(options)
    found = steps.extract_subgraphs(options, model, target)
    if not options.layers:
        return TuningNetwork(model, target, found)
    part = {"layers": list(options.layers), "workloads_of_network": len(found.subgraphs)}
    return TuningNetwork(model, target, those_of(found, options.layers), part)


def _tuned(
    options: TuningOptions, jobs: Sequence[WorkloadJob], steps: NetworkSteps, stop: threading.Event
) -> tuple[list[TunedWorkload], StopGain | None]:
    """All workloads, each with its own trials; or with a share of all trials, and what became
    of these."""
    if options.stop_gain is None:
        return each_of(steps.tune, jobs, _at_a_time(options), stop.set), None
    rules = SharingRules(options.trials, options.batch, options.stop_gain)
    states = [TaskState(job.subgraph.count, job.study.workload.macs) for job in jobs]
    scheduler = TaskScheduler(states, rules, options.jobs, stop)
    scheduled_jobs = [
        replace(job, scheduled=task) for job, task in zip(jobs, scheduler.tasks, strict=True)
    ]
    with one_owner() if options.jobs == 1 else nullcontext():
        tuned = each_of(
            partial(_in_turn, steps), scheduled_jobs, len(scheduled_jobs), scheduler.stop
        )
    return tuned, scheduler.outcome


def _at_a_time(options: TuningOptions) -> int:
    """How many workloads: as many as asked for, else what keeps the workers of a cluster busy. A
    board measures one program at a time."""
    if options.jobs > 1 or not options.cluster or kind_of(options.target)[0].make_on is not None:
        return options.jobs
    from tilewright.targets.cluster.connection import connect

    return max(1, min(MOST_AT_A_TIME, connect(options.cluster).slots()))


def _in_turn(steps: NetworkSteps, job: WorkloadJob) -> TunedWorkload:
    """A workload, from its first turn to its last."""
    assert job.scheduled is not None, "rounds are shared"
    with job.scheduled:
        return steps.tune(job)


def _found(network: TuningNetwork) -> NetworkFound:
    return NetworkFound(
        network.model.name,
        network.target.name,
        _named(network.subgraphs),
    )


def _named(subgraphs: Sequence[Subgraph]) -> tuple[WorkloadFound, ...]:
    return tuple(
        WorkloadFound(each.workload.id, str(each.workload), each.count) for each in subgraphs
    )
