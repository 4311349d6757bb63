"""What every stage does: look for its result under its key, else compute it and keep it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from tasks.files import Json
from tasks.session import refresh_wanted, store, tell
from tasks.store import Manifest, cache_key

Work = Callable[[], tuple[dict[str, Json], dict[str, str]]]
"""Computes a stage: its values, and the names of the data files it put into the store."""

STAGE_OPTIONS: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
"""Prefect neither caches nor persists: `tasks.store` does, and says why."""


def reuse_or_do(
    stage: str, version: int, fingerprint: str, inputs: Mapping[str, Json], work: Work
) -> Manifest:
    """The manifest of a stage, from the cache if an intact one is there. Called in a Prefect task,
    whose run then ends in the state `Cached`."""
    key = cache_key(stage, version, fingerprint, inputs)
    tell("stage", name=stage)
    found = None if refresh_wanted() else store().find(stage, key)
    if found is not None:
        # Prefect takes a returned state as the run's own and hands the caller its data.
        return cast(Manifest, Completed(data=found, name="Cached", message="reused"))
    values, files = work()
    manifest = Manifest(stage, key, values, files)
    store().save(manifest)
    return manifest


__all__ = ["STAGE_OPTIONS", "Work", "reuse_or_do", "task"]
