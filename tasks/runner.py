"""The stages of a run as tasks: what the engine passes on as objects, tasks get as manifests."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from tilewright.core.files import Json
from tilewright.search import Batch, Candidates, ExplorerState, History, Known, round_steps
from tilewright.targets.base import Measurements
from tilewright.tasks import round_tasks
from tilewright.tasks.artifact_store import CacheUse, Manifest
from tilewright.tasks.cached_task import Done, Key, Made, find_or_do
from tilewright.tuning.events import Listener, StageBegan, StageReused
from tilewright.tuning.tuning_task import TuningTask

T = TypeVar("T")


class CachedStages:
    """Performs each stage in a task that looks into the cache first; keeps
    `search.runner.Stages`."""

    def __init__(self, cache: CacheUse, study: TuningTask, emit: Listener) -> None:
        self.cache = cache
        self.study = study
        self.emit = emit
        self._lately: deque[tuple[object, Manifest]] = deque(maxlen=16)

    def begin(self, state: ExplorerState) -> ExplorerState:
        """Kept, too: some tuners look at much of a space. Part of the first round, no task."""
        start, study = self.manifest_of(state), self.study

        def work() -> Made:
            begun = round_steps.begin(study.explorer, study.problem, state)
            return {}, round_tasks.keep_state(self.cache, begun).files

        inputs: dict[str, Json] = {"study": study.describe(), "state": start.key}
        key = Key("begin", 1, study.target.fingerprint, inputs)
        _, manifest = find_or_do(self.cache, key, work)
        return self._named(round_tasks.read_state(self.cache, manifest), manifest)

    def generate(self, state: ExplorerState, history: History, n: int) -> Candidates:
        self.emit(StageBegan("generate_candidates"))
        done = round_tasks.generate_candidates(
            self.cache, self.study, history.round, self.manifest_of(state), self._history(history),
            n,
        )  # fmt: skip
        return self._took(done, round_tasks.read_candidates(self.cache, self.study, done.manifest))

    def filter(
        self, state: ExplorerState, history: History, named: Candidates, n: int
    ) -> Candidates:
        self.emit(StageBegan("filter_candidates"))
        done = round_tasks.filter_candidates(
            self.cache, self.study, history.round, self.manifest_of(state), self._history(history),
            self._known(named), n,
        )  # fmt: skip
        return self._took(done, round_tasks.read_candidates(self.cache, self.study, done.manifest))

    def lower(self, state: ExplorerState, history: History, kept: Candidates, n: int) -> Batch:
        self.emit(StageBegan("lower_candidates"))
        done = round_tasks.lower_candidates(
            self.cache, self.study, history.round, self.manifest_of(state), self._history(history),
            self._known(kept), n,
        )  # fmt: skip
        return self._took(done, round_tasks.read_batch(self.cache, self.study, done.manifest))

    def measure(self, round_index: int, batch: Batch, known: Known) -> Measurements:
        """Of what is known only the batch's own rows go to the task."""
        flat = self.study.problem.space.ravel(batch.rows.configs)
        held = {int(i): known[int(i)] for i in flat if int(i) in known}
        self.emit(StageBegan("simulate_batch"))
        done = round_tasks.simulate_batch(
            self.cache, self.study, round_index, self._known(batch), held
        )
        return self._took(done, round_tasks.read_measurements(self.cache, done.manifest))

    def retrain(self, state: ExplorerState, history: History) -> ExplorerState:
        self.emit(StageBegan("retrain_models"))
        done = round_tasks.retrain_models(
            self.cache, self.study, history.round - 1, self.manifest_of(state),
            self._history(history),
        )  # fmt: skip
        return self._took(done, round_tasks.read_state(self.cache, done.manifest))

    def relearn(self, state: ExplorerState, histories: Sequence[History]) -> ExplorerState:
        """Of rounds that are all in the cache only the last one's models are read."""
        held = self._held(state, histories)
        if held is not None:
            return self._named(round_tasks.read_state(self.cache, held), held)
        for history in histories:
            state = self.retrain(state, history)
        return state

    def manifest_of(self, state: ExplorerState) -> Manifest:
        """What a state is known as; one that nobody knows is kept."""
        found = self._find(state)
        return found or self._add(state, round_tasks.keep_state(self.cache, state))

    def _held(self, state: ExplorerState, histories: Sequence[History]) -> Manifest | None:
        manifest: Manifest | None = self.manifest_of(state)
        for history in histories:
            if manifest is None or self.cache.refresh:
                return None
            key = round_tasks.retrained(self.study, manifest, self._history(history))
            last = history is histories[-1]
            manifest = self.cache.store.find(key.stage, key.text, with_data=last)
        return manifest

    def _history(self, history: History) -> Manifest:
        found = self._find(history)
        return found or self._add(history, round_tasks.keep_history(self.cache, history))

    def _known(self, thing: Candidates | Batch) -> Manifest:
        found = self._find(thing)
        assert found is not None, "the engine passes on what it was given"
        return found

    def _took(self, done: Done, thing: T) -> T:
        if done.reused:
            self.emit(StageReused(done.manifest.stage))
        self._add(thing, done.manifest)
        return thing

    def _named(self, thing: T, manifest: Manifest) -> T:
        self._add(thing, manifest)
        return thing

    def _find(self, thing: object) -> Manifest | None:
        # the latest: what a stage left as it was is the same object, from the cache
        return next((known for each, known in reversed(self._lately) if each is thing), None)

    def _add(self, thing: object, manifest: Manifest) -> Manifest:
        self._lately.append((thing, manifest))
        return manifest
