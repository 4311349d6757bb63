"""Describes what is tuned, with which tuner, on which target."""

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
from tilewright.tuning.options import CHAMPION, TuningOptions

if TYPE_CHECKING:
    from tilewright.models.transfer.model import Transferred

_OWNER: ContextVar[int] = ContextVar("_OWNER", default=0)
"""Whose targets are used, if not those of the thread that asks: a negative number."""


@dataclass(frozen=True)
class TuningTask:
    """One workload on one target with one tuner and seed. `options` are sorted pairs; `start`
    identifies the state the tuner begins with, if it is not empty; `isolate` is how many seconds
    a target in a process of its own has for a batch, 0 for one in this process; `cluster` is the
    address of the Dask cluster that lowers and measures, if any; `transferred` is the folder of a
    model that learned elsewhere, if there is one, which `start` then identifies; `shared` says
    whether several commands make the trials. `names` are the layers of the network that are this
    workload, and `count` is how often an inference runs it."""

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
        """Raises a `TilewrightError` of the target's kind, or `TargetDown`."""
        return target_named(self.target_name, self.space_name, self.isolate, self.cluster)

    @property
    def explorer(self) -> Explorer:
        """Raises `UnknownName` or `OptionError`."""
        return _explorer(self.tuner, self.options)

    @property
    def problem(self) -> Problem:
        """Raises `WorkloadError` if the target has no schedule for the workload."""
        return _problem(self, state_of(self.target_name))

    @property
    def store_key(self) -> RunKey:
        """Return the key of this run in the trial store."""
        cold = run_id(self.explorer, self.seed, self.batch)
        run = digest(f"{cold} {self.start}".encode())[:12] if self.start else cold
        key = (self.workload.id, self.target.fingerprint, run)
        return shared_key(key) if self.shared else key

    def describe(self) -> dict[str, Json]:
        """What a stage that asks the explorer depends on, beside its inputs."""
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
    """Return the task of one workload of a run. Raises `UnknownName`, and `TransferError` for a
    folder that holds no transferred model."""
    folder = "" if options.warm_start == CHAMPION else options.warm_start
    return TuningTask(
        workload=workload,
        target_name=options.target,
        space_name=space_of(options),
        tuner=options.tuner,
        seed=options.seed,
        batch=options.batch,
        options=tuple(sorted(options.tuner_options.items())),
        isolate=options.isolate,
        start=identity_of(Path(folder)) if folder else "",
        transferred=folder,
        cluster=options.cluster,
        shared=options.shared,
        names=names,
        count=count,
    )


def space_of(options: TuningOptions) -> str:
    """The space's name, also where none was given; "" if the target has only one. Raises
    `UnknownName`."""
    return kind_of(options.target)[0].space_named(options.space)


def target_of(options: TuningOptions) -> Target:
    """The target of a run. Raises as `make_target`, or `TargetDown`."""
    return target_named(options.target, space_of(options), options.isolate, options.cluster)


def target_named(name: str, space: str, isolate: float, cluster: str = "") -> Target:
    """A target, kept for the next time. A thread has its own where a process goes with it, or a
    workload (`own_targets`). With the address of a `cluster`, its workers lower and measure.
    Raises `ClusterError`, too."""
    if cluster:
        return _target_on(cluster, name, space, isolate, state_of(name))
    owner = (_OWNER.get() or threading.get_ident()) if isolate else 0
    return _target(name, space, isolate, owner, state_of(name))


def own_targets(owner: int) -> None:
    """Use, in this context, the targets of an owner, whichever thread asks: 1 or more."""
    _OWNER.set(-owner)


def state_of(target_name: str) -> tuple[int, int]:
    """Of a target's file: it may be written anew between two runs of a process, and what was kept
    of the target is then another's."""
    try:
        found = os.stat(target_name)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


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
    """The model, as long as the folder holds the one of this identity."""
    from tilewright.models.transfer.registry import load_model

    if identity_of(Path(folder)) != identity:
        raise TransferError(f"{folder}: the model was replaced meanwhile; run the command again")
    return load_model(Path(folder))
