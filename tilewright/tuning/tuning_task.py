"""Description of a tuning task: the workload, the tuner and the target, by name."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.core.child_process import Limits
from tilewright.core.files import Json, digest
from tilewright.core.options import OptionValue
from tilewright.models import make_explorer
from tilewright.models.transfer.contract import TransferError
from tilewright.models.transfer.files import identity_of
from tilewright.search import Explorer, Problem, RunKey, problem_of, run_id, shared_key
from tilewright.targets import subprocess_target
from tilewright.targets.base import Target
from tilewright.targets.cluster.connection import connect_early
from tilewright.targets.cluster.remote_worker import prepare_worker
from tilewright.targets.cluster.target import ClusterTarget, recipe_of
from tilewright.targets.registry import kind_of, make_target
from tilewright.targets.workload import Workload
from tilewright.tuning.earlier_run import holds_run, read_earlier_run
from tilewright.tuning.options import CHAMPION, TuningOptions

if TYPE_CHECKING:
    from tilewright.models.transfer.model import Transferred

_OWNER: ContextVar[int] = ContextVar("_OWNER", default=0)
"""Owner of the targets that this context uses: a negative number, or 0 for those of its thread."""


@dataclass(frozen=True)
class TuningTask:
    """One workload on one target, with one tuner and seed.

    Attributes:
        workload: the workload.
        target_name: name of the target.
        space_name: name of the schedule space.
        tuner: name of the tuner.
        seed: seed of the run.
        batch: trials per round.
        options: options of the tuner, as sorted pairs.
        start: ID of the state that the tuner starts with, or "".
        isolate: time limit per batch in seconds for a target in a separate process; 0 if the target
            runs in this process.
        transferred: folder of a transfer model, or "". `start` is then the model's ID.
        cluster: address of the Dask cluster that lowers and measures, or "".
        shared: whether several commands make the trials together.
        names: layers of the network with this workload.
        count: number of calls per inference.
    """

    workload: Workload
    target_name: str
    space_name: str
    tuner: str
    seed: int
    batch: int
    options: tuple[tuple[str, OptionValue], ...] = ()
    start: str = ""
    isolate: float = 0.0
    transferred: str = ""
    cluster: str = ""
    shared: bool = False
    names: tuple[str, ...] = ()
    count: int = 1

    @property
    def target(self) -> Target:
        """Target of the task.

        Raises:
            TilewrightError: the target cannot be built.
            TargetDown: the process of the target failed.
        """
        return target_named(self.target_name, self.space_name, self.isolate, self.cluster)

    @property
    def explorer(self) -> Explorer:
        """Tuner of the task.

        Raises:
            UnknownName: there is no such tuner.
            OptionError: an option is invalid.
        """
        return _explorer(self.tuner, self.options)

    @property
    def problem(self) -> Problem:
        """Tuning problem of the task.

        Raises:
            WorkloadError: the target has no schedule for the workload.
        """
        return _problem(self, state_of(self.target_name))

    @property
    def store_key(self) -> RunKey:
        """Key of this run in the trial store."""
        cold = run_id(self.explorer, self.seed, self.batch)
        run = digest(f"{cold} {self.start}".encode())[:12] if self.start else cold
        key = (self.workload.id, self.target.fingerprint, run)
        return shared_key(key) if self.shared else key

    def describe(self) -> dict[str, Json]:
        """Return everything that determines the explorer's answers, apart from a step's inputs."""
        return {
            "workload": self.workload.to_json(),
            "tuner": self.tuner,
            "options": self.explorer.options.model_dump(mode="json"),
            "seed": self.seed,
            "batch": self.batch,
            **({"transferred": self.start} if self.transferred else {}),
        }


def tuning_task_of(
    options: TuningOptions, workload: Workload, names: tuple[str, ...] = (), count: int = 1
) -> TuningTask:
    """Return the task of one workload of a run.

    Args:
        options: options of the run.
        workload: the workload.
        names: names of the layers with this workload.
        count: number of calls per inference.

    Raises:
        UnknownName: a name is unknown.
        TransferError: the folder of the warm start holds neither a model nor a run.
        EarlierRunError: the run in the folder of the warm start cannot be used.
    """
    folder = "" if options.warm_start == CHAMPION else options.warm_start
    start, transferred = "", folder
    if folder and holds_run(Path(folder)):
        start, transferred = read_earlier_run(Path(folder)).identity, ""
    elif folder:
        start = identity_of(Path(folder))
    return TuningTask(
        workload=workload,
        target_name=options.target,
        space_name=space_of(options),
        tuner=options.tuner,
        seed=options.seed,
        batch=options.batch,
        options=tuple(sorted(options.tuner_options.items())),
        isolate=options.isolate,
        start=start,
        transferred=transferred,
        cluster=options.cluster,
        shared=options.shared,
        names=names,
        count=count,
    )


def space_of(options: TuningOptions) -> str:
    """Return the name of the schedule space, also if it is the default; "" if there is only one.

    Raises:
        UnknownName: the target does not have this space.
    """
    return kind_of(options.target)[0].space_named(options.space)


def target_of(options: TuningOptions) -> Target:
    """Return the target of a run. Raises the errors of `make_target`, or `TargetDown`."""
    return target_named(options.target, space_of(options), options.isolate, options.cluster)


def target_named(name: str, space: str, isolate: float, cluster: str = "") -> Target:
    """Return a target from the cache, or build it.

    A target with a separate process is not shared between threads or workloads (`own_targets`).

    Args:
        name: name of the target.
        space: name of the schedule space.
        isolate: time limit per batch in seconds for a separate process, or 0.
        cluster: address of a cluster whose workers lower and measure, or "".

    Raises:
        ClusterError: the cluster cannot be reached.
        TilewrightError: the target cannot be built.
    """
    if cluster:
        return _target_on(cluster, name, space, isolate, state_of(name))
    owner = (_OWNER.get() or threading.get_ident()) if isolate else 0
    return _target(name, space, isolate, owner, state_of(name))


def own_targets(owner: int) -> None:
    """Give this context targets of its own, which no other workload uses, in any thread.

    A target with a separate process serves one workload at a time. Later calls of `target_named` in
    this context return the targets of `owner`.

    Args:
        owner: number of the owner, 1 or more.
    """
    _OWNER.set(-owner)


def state_of(target_name: str) -> tuple[int, int]:
    """Return modification time and size of a target's file, or zeros if it is not a file.

    The caches use it as a part of their keys, because the file may change between two runs of a
    process.
    """
    try:
        result = os.stat(target_name)
    except OSError:
        return (0, 0)
    return (result.st_mtime_ns, result.st_size)


@lru_cache(maxsize=64)
def _target(name: str, space: str, isolate: float, thread: int, state: tuple[int, int]) -> Target:
    here = make_target(name, space)
    if not isolate:
        return here
    kind = kind_of(name)[0]
    if kind.with_run_limit is not None:
        return kind.with_run_limit(here, isolate)
    recipe = {"text": name, "space": space}
    return subprocess_target.IsolatedTarget(
        subprocess_target.NAMED, recipe, Limits(isolate), beside=here
    )


@lru_cache(maxsize=64)
def _target_on(
    cluster: str, name: str, space: str, isolate: float, state: tuple[int, int]
) -> Target:
    kind, rest = kind_of(name)
    if kind.make_on is not None:
        return kind.make_on(rest, kind.space_named(space), cluster)
    here = make_target(name, space)
    target = ClusterTarget(here, recipe_of(here, name, space), cluster, isolate)
    connect_early(cluster, prepare_worker, target.specification)  # a mistake shows before any work
    return target


@lru_cache(maxsize=8)
def _explorer(name: str, options: tuple[tuple[str, OptionValue], ...]) -> Explorer:
    return make_explorer(name, dict(options))


@lru_cache(maxsize=64)
def _problem(task: TuningTask, state: tuple[int, int]) -> Problem:
    problem = problem_of(task.target, task.workload, task.seed)
    if not task.transferred:
        return problem
    from tilewright.models.transfer.model import prior_from  # loads libraries that learn

    model = _model(task.transferred, task.start)
    return replace(problem, transferred=prior_from(model, problem))


@lru_cache(maxsize=4)
def _model(folder: str, identity: str) -> Transferred:
    """Load a transfer model, if the folder still holds the one with this ID."""
    from tilewright.models.transfer.registry import load_model

    if identity_of(Path(folder)) != identity:
        raise TransferError(
            f"the model in {folder} was replaced while this command ran; repeat the command"
        )
    return load_model(Path(folder))
