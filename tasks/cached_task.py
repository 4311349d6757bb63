"""Performs a stage: looks for its result under its key, else computes and stores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.utilities.annotations import quote

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
    """A stage that is over; `reused` says that its result was there already."""

    manifest: Manifest
    reused: bool


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


def step(run_name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A Prefect task named like the function; its runs are named by the template `run_name`.

    Prefect neither caches nor persists what it returns: `tasks.artifact_store` does, and says why.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return task(
            name=function.__name__, task_run_name=run_name, cache_policy=NO_CACHE,
            persist_result=False,
        )(function)  # fmt: skip

    return decorate


def stage(run_name: str) -> Callable[[Callable[P, Result]], Callable[P, Done]]:
    """The same for a stage whose result is kept."""

    def decorate(function: Callable[P, Result]) -> Callable[P, Done]:
        wrapped = task(
            name=function.__name__, task_run_name=run_name, cache_policy=NO_CACHE,
            persist_result=False,
        )(function)  # fmt: skip

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Done:
            state = wrapped(*args, **kwargs, return_state=True)
            manifest = state.result()
            assert isinstance(manifest, Manifest)
            return Done(manifest, state.name == REUSED)

        return call

    return decorate


def reuse_or_do(cache: CacheUse, key: Key, work: Callable[[], Made]) -> Result:
    """The manifest of a stage, from the cache if an intact one is there; its run then ends in the
    state `Cached`."""
    found, manifest = find_or_do(cache, key, work)
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
