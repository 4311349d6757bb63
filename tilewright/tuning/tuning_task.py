"""A tuning task: one workload with a target and a tuner, both given by name."""

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
"""Number that identifies whose instances of isolated targets this context uses: negative after
`own_targets`, or 0 for those of the current thread."""


@dataclass(frozen=True)
class TuningTask:
    """One workload on one target, with one tuner and seed.

    Attributes:
        workload: the workload.
        target_name: name of the target.
        space_name: name of the schedule space.
        tuner: name of the tuner.
        seed: seed of the run.
        batch: number of trials per round.
        options: options of the tuner, as sorted pairs of name and value.
        start: ID of the transfer model or the earlier run with which the tuner starts, or "".
        isolate: time limit per batch in seconds if the target runs in a separate process; 0 if it
            runs in this process.
        transferred: folder of a transfer model, or "". `start` is then the model's ID.
        cluster: address of the Dask cluster that lowers and measures, or "".
        shared: whether several commands share the trials of the run.
        names: names of the network's layers with this workload.
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
        """Target of the task, built on first use.

        Raises:
            TilewrightError: the target cannot be built.
            TargetDown: the process of the target failed.
        """
        return target_named(self.target_name, self.space_name, self.isolate, self.cluster)

    @property
    def explorer(self) -> Explorer:
        """Tuner of the task, built on first use.

        Raises:
            UnknownName: no tuner has this name.
            OptionError: an option is invalid.
        """
        return _explorer(self.tuner, self.options)

    @property
    def problem(self) -> Problem:
        """Problem that the tuner solves: the workload, its search space and the seed.

        Raises:
            WorkloadError: the target has no schedule space for the workload.
        """
        return _problem(self, state_of(self.target_name))

    @property
    def store_key(self) -> RunKey:
        """Key under which the trial store keeps the trials: workload, target and run."""
        cold = run_id(self.explorer, self.seed, self.batch)
        run = digest(f"{cold} {self.start}".encode())[:12] if self.start else cold
        key = (self.workload.id, self.target.fingerprint, run)
        return shared_key(key) if self.shared else key

    def describe(self) -> dict[str, Json]:
        """Return everything that determines the tuner's decisions, except the inputs of the steps.

        The result is JSON and serves as a part of the key under which the results of steps are
        cached.
        """
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
    """Create the task of one workload of a run.

    Args:
        options: options of the run.
        workload: the workload.
        names: names of the layers with this workload.
        count: number of calls per inference.

    Raises:
        UnknownName: a name is unknown.
        TransferError: the folder of the warm start contains neither a model nor a run.
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
    """Return the name of the schedule space of a run, with the default filled in.

    Args:
        options: options of the run.

    Returns:
        The name, or "" if the target has only one space.

    Raises:
        UnknownName: the target does not have this space.
    """
    return kind_of(options.target)[0].space_named(options.space)


def target_of(options: TuningOptions) -> Target:
    """Return the target of a run.

    Args:
        options: options of the run.

    Raises:
        TilewrightError: the target cannot be built, as in `target_named`.
    """
    return target_named(options.target, space_of(options), options.isolate, options.cluster)


def target_named(name: str, space: str, isolate: float, cluster: str = "") -> Target:
    """Build a target, or return it from the cache.

    A target in a separate process is not shared between threads or workloads (`own_targets`).

    Args:
        name: name of the target.
        space: name of the schedule space.
        isolate: time limit per batch in seconds for a target in a separate process; 0 for a target
            in this process.
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
    """Give the current context its own instances of targets that run in a separate process.

    Such a target serves one workload at a time. Later calls of `target_named` in this context
    return the instances of `owner`, in whichever thread the context runs.

    Args:
        owner: number of the owner, 1 or more.
    """
    _OWNER.set(-owner)


def state_of(target_name: str) -> tuple[int, int]:
    """Return the modification time and the size of a target's file.

    Caches use this state as a part of their keys, because the file may change between two runs of
    one process.

    Args:
        target_name: name of the target, which may be the path of a file.

    Returns:
        Modification time in ns and size in bytes; zeros if the target is not a file.
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
    # A wrong address is reported here, before any work.
    connect_early(cluster, prepare_worker, target.specification)
    return target


@lru_cache(maxsize=8)
def _explorer(name: str, options: tuple[tuple[str, OptionValue], ...]) -> Explorer:
    return make_explorer(name, dict(options))


@lru_cache(maxsize=64)
def _problem(task: TuningTask, state: tuple[int, int]) -> Problem:
    problem = problem_of(task.target, task.workload, task.seed)
    if not task.transferred:
        return problem
    from tilewright.models.transfer.model import prior_from  # imports learning libraries

    model = _model(task.transferred, task.start)
    return replace(problem, transferred=prior_from(model, problem))


@lru_cache(maxsize=4)
def _model(folder: str, identity: str) -> Transferred:
    """Load the transfer model of a folder, or return it from the cache.

    Args:
        folder: folder of the model.
        identity: ID that the model must have.

    Raises:
        TransferError: the folder no longer contains the model with this ID.
    """
    from tilewright.models.transfer.registry import load_model

    if identity_of(Path(folder)) != identity:
        raise TransferError(
            f"the model in {folder} was replaced while this command ran; repeat the command"
        )
    return load_model(Path(folder))
