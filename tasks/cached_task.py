"""Performs a stage: looks for its result under its key, else computes and stores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, ParamSpec, TypeVar

from mlflow.exceptions import MlflowException
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.states import Completed
from prefect.utilities.annotations import quote
from requests.exceptions import RequestException

from tilewright.core.files import Json
from tilewright.tasks.artifact_store import CacheUse, Manifest, cache_key

P = ParamSpec("P")
R = TypeVar("R")

Made = tuple[dict[str, Json], dict[str, str]]
"""What computing a stage gave: its values, and the names of the data files in the store by role."""

Result = Manifest | State[Manifest]
"""What a stage returns to Prefect: the manifest, or the state its run is to end in, with one."""

REUSED = "Cached"


@dataclass(frozen=True)
class Done:
    """A stage that is over; `reused` says that its result was there already. `state` is how the run
    of its task ended: what later tasks name as the one they follow."""

    manifest: Manifest
    reused: bool
    state: State[Manifest]


@dataclass(frozen=True)
class Key:
    """What a stage's result depends on. `version` counts the stage's own schema, `fingerprint` is
    the target's, "" where it does not matter."""

    stage: str
    version: int
    fingerprint: str
    inputs: Mapping[str, Json]

    @property
    def text(self) -> str:
        """What it is filed under (`tasks.artifact_store.cache_key`)."""
        return cache_key(self.stage, self.version, self.fingerprint, self.inputs)


def unsearched(value: R) -> R:
    """An argument of a task that Prefect does not search for futures: a large object. The task gets
    the value itself."""
    return quote(value)  # type: ignore[return-value]  # the engine takes the annotation off


RETRIES = (2.0, 10.0)
"""Seconds before a task is tried again whose failure may pass (`passes`)."""
RunName = str | Callable[..., str]
"""What names the runs of a task: a template, or a function of `parameters`, the task's by name."""


def step(run_name: RunName, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A Prefect task called `name`, like the function if that is empty; `run_name` names its runs.

    Prefect neither caches nor persists what it returns: `tasks.artifact_store` does, and says why.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _task(function, run_name, name)

    return decorate


class Stage(Generic[P]):
    """The same for a stage whose result is kept: `stage(after, …)` performs it behind what is in
    `after`, states and results of other tasks. `function` is the stage without Prefect."""

    def __init__(self, function: Callable[P, Result], run_name: str) -> None:
        self.function = function
        self._task: Any = _task(function, run_name)
        self._known: Any = _task(
            _known, lambda parameters: run_name.format(**parameters["names"]), function.__name__
        )

    def __call__(self, after: Sequence[object], *args: P.args, **kwargs: P.kwargs) -> Done:
        # Prefect searches what is not quoted for results of other tasks, and takes a new object at
        # the place in memory of one that is gone for that: edges that nobody meant.
        given = (each if isinstance(each, str | int) else quote(each) for each in args)
        state = self._task(*given, **kwargs, return_state=True, wait_for=after)
        manifest = state.result()
        assert isinstance(manifest, Manifest)
        return Done(manifest, state.name == REUSED, state)

    def show_known(self, after: Sequence[object], told: str, **names: object) -> State[None]:
        """Show a run of it that has nothing to do, since what it would give is recorded: it ends as
        `Cached`. `names` fill the template of its name, `told` goes to its log."""
        state: State[None] = self._known(told, quote(names), return_state=True, wait_for=after)
        return state


def stage(run_name: str) -> Callable[[Callable[P, Result]], Stage[P]]:
    """Makes a `Stage` of a function."""
    return lambda function: Stage(function, run_name)


def reuse_or_do(
    cache: CacheUse,
    key: Key,
    work: Callable[[], Made],
    told: Callable[[Mapping[str, Json]], str] = lambda values: "",
) -> Result:
    """The manifest of a stage, from the cache if an intact one is there; its run then ends in the
    state `Cached`. `told` says in a line what the values of the manifest come to."""
    found, manifest = find_or_do(cache, key, work)
    say(told(manifest.values))
    return Completed(data=manifest, name=REUSED, message="reused") if found else manifest


def find_or_do(cache: CacheUse, key: Key, work: Callable[[], Made]) -> tuple[bool, Manifest]:
    """Whether the cache had it, and the manifest."""
    held = None if cache.refresh else cache.store.find(key.stage, key.text)
    if held is not None:
        return True, held
    values, files = work()
    manifest = Manifest(key.stage, key.text, values, files)
    cache.store.save(manifest)
    return False, manifest


def say(text: str) -> None:
    """Write a line to the log of the task that this is part of, if it is part of any."""
    if text and TaskRunContext.get() is not None:
        get_run_logger().info(text)


def passes(_: object, __: object, state: State[Any]) -> bool:
    """Whether what failed may succeed a little later: a server or a worker that did not answer. Bad
    input, wrong numbers and a full disk stay what they are."""
    error = state.data
    if isinstance(error, MlflowException):
        status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
        return status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, ConnectionError | TimeoutError | RequestException)


def _task(function: Callable[P, R], run_name: RunName, name: str = "") -> Callable[P, R]:
    return task(
        name=name or function.__name__, task_run_name=run_name, cache_policy=NO_CACHE,
        persist_result=False, retries=len(RETRIES), retry_delay_seconds=list(RETRIES),
        retry_condition_fn=passes,
    )(function)  # fmt: skip


def _known(told: str, names: Mapping[str, object]) -> State[None]:
    say(told)
    return Completed(name=REUSED, message="recorded by an earlier run")
