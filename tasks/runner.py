"""Performs the steps of a round as Prefect tasks that look into the store first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilewright.core.files import Json
from tilewright.search import ExplorerState, History, LocalRunner, Result, Setting, round_steps
from tilewright.tasks import round_tasks
from tilewright.tasks.artifact_store import CacheUse, Manifest
from tilewright.tasks.cached_task import Key, Made, find_or_do
from tilewright.tuning.events import Listener, StageBegan, StageReused
from tilewright.tuning.tuning_task import TuningTask

T = TypeVar("T")


class PrefectRunner(LocalRunner):
    """Runs each step as the task that `round_tasks.TASKS` names. Tasks take and give manifests;
    the data lie in the store. `Result.stored` is a value's manifest."""

    def __init__(self, cache: CacheUse, study: TuningTask, emit: Listener) -> None:
        super().__init__()
        self.cache = cache
        self.study = study
        self.emit = emit

    def __call__(self, step: Callable[..., T], setting: Setting, *given: object) -> Result[T]:
        self.emit(StageBegan(step.__name__))
        task, read = round_tasks.TASKS[step]
        done = task(self.cache, self.study, _round_of(step, given), *map(_stored, given))
        if done.reused:
            self.emit(StageReused(step.__name__))
        return Result(read(self.cache, self.study, done.manifest), done.manifest)

    def keep(self, value: T) -> Result[T]:
        put = round_tasks.keep_history if isinstance(value, History) else round_tasks.keep_state
        return Result(value, put(self.cache, value))  # type: ignore[arg-type]

    def begin(self, setting: Setting, state: ExplorerState) -> Result[ExplorerState]:
        """Stored, too: some tuners look at much of a space. Part of the first round, no task."""
        start, study = self.keep(state).stored, self.study

        def work() -> Made:
            begun = round_steps.begin(setting, state)
            return {}, round_tasks.keep_state(self.cache, begun).files

        inputs: dict[str, Json] = {"study": study.describe(), "state": start.key}
        key = Key("begin", 1, study.target.fingerprint, inputs)
        _, manifest = find_or_do(self.cache, key, work)
        return Result(round_tasks.read_state(self.cache, manifest), manifest)

    def retrain(
        self,
        setting: Setting,
        state: Result[ExplorerState],
        histories: Sequence[Result[History]],
    ) -> Result[ExplorerState]:
        """Of rounds that are all in the store only the last one's models are read."""
        held = self._held(state, histories)
        if held is not None:
            return Result(round_tasks.read_state(self.cache, held), held)
        return super().retrain(setting, state, histories)

    def _held(
        self, state: Result[ExplorerState], histories: Sequence[Result[History]]
    ) -> Manifest | None:
        manifest: Manifest | None = state.stored
        for history in histories:
            if manifest is None or self.cache.refresh:
                return None
            key = round_tasks.retrained(self.study, manifest, history.stored)
            last = history is histories[-1]
            manifest = self.cache.store.find(key.stage, key.text, with_data=last)
        return manifest


def _stored(given: object) -> Any:
    """What a task gets: of results their manifests, anything else as it is."""
    if not isinstance(given, Result):
        return given
    assert isinstance(given.stored, Manifest), "a result of another runner"
    return given.stored


def _round_of(step: Callable[..., object], given: Sequence[object]) -> int:
    """The index of the round that the step is part of."""
    (history,) = (
        each.value for each in given if isinstance(each, Result) and isinstance(each.value, History)
    )
    return int(history.round) - (step is round_steps.retrain_models)
