"""What every stage does: look for its result under its key, else compute it and keep it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from targets.files import Json
from tasks.session import emit, refresh_wanted, store
from tasks.store import Manifest, cache_key

P = ParamSpec("P")
R = TypeVar("R")

Work = Callable[[], tuple[dict[str, Json], dict[str, str]]]
"""Computes a stage: its values, and the names of the data files it put into the store."""


def stage(run_name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A Prefect task named like the function; its runs are named by the template `run_name`.

    Prefect neither caches nor persists what it returns: `tasks.store` does, and says why.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__
        wrapped = task(
            name=name, task_run_name=run_name, cache_policy=NO_CACHE, persist_result=False
        )(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return wrapped(*args, **kwargs, return_state=True).result()

        return call

    return decorate


def reuse_or_do(
    name: str, version: int, fingerprint: str, inputs: Mapping[str, Json], work: Work
) -> Manifest:
    """The manifest of a stage, from the cache if an intact one is there. Called in a stage, whose
    run then ends in the state `Cached`."""
    key = cache_key(name, version, fingerprint, inputs)
    emit("stage", name=name)
    found = None if refresh_wanted() else store().find(name, key)
    if found is not None:
        emit("reused", name=name)
        # Prefect takes a returned state as the run's own, with the result in it.
        return cast(Manifest, Completed(data=found, name="Cached", message="reused"))
    values, files = work()
    manifest = Manifest(name, key, values, files)
    store().save(manifest)
    return manifest
