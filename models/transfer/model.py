"""Implements what all kinds of transferred models share: columns by name, labels, the chance to
run, typical errors, the folder, and the prior that a tuner asks. A kind learns to rank and keeps
what it learned.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tilewright.core.errors import TilewrightError
from tilewright.models.transfer.columns import columns_of
from tilewright.models.transfer.contract import CommonOptions, Prediction, Training, TransferError
from tilewright.models.transfer.files import Index, no_model, read_files, write_model
from tilewright.models.transfer.timed_trees import Chance
from tilewright.models.transfer.training_data import (
    Labels,
    Matrix,
    TrainingTable,
    aligned,
    half_known,
    held_out,
    is_late,
    kept_back,
    known_columns,
    labels,
    less_constants,
    masked,
    of_tasks,
    reference,
    uncompiled,
)
from tilewright.search.problem import Belief, Problem, TransferredPrior
from tilewright.targets.base import Configs
from tilewright.targets.features import Features

CHANCE = "validity.ubj"
_CHANCE_SHARE = 0.15  # of the time for training
LEAST_VALID = 32
"""Rows with a latency that fine-tuning takes at least, those kept back among them: ours."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Lesson:
    """What a kind learns from: columns by `names` with NaN for what is unknown, shape (rows,
    columns), and `models.transfer.preprocessing.labels`, two of (rows,); the same of rows that tell
    when to stop; and when to stop at the latest, by `time.monotonic`."""

    names: tuple[str, ...]
    x: Matrix
    y: tuple[Labels, Labels]
    held_x: Matrix
    held_y: tuple[Labels, Labels]
    until: float
    say: Say


@dataclass(frozen=True)
class LearningOutcome:
    """How many epochs were done of how many, in how many seconds, without what had to be compiled
    first, and by what they ended."""

    epochs: float
    asked: int
    seconds: float
    stopped: str


class Transferred(ABC):
    """A cost model of programs on hardware. Columns are known by name: their order says nothing,
    those it was not trained with are passed over, those that are missing or NaN are masked."""

    kind: ClassVar[str]
    file: ClassVar[str]
    options_type: ClassVar[type[CommonOptions]]
    refining: ClassVar[Mapping[str, object]]
    """Options that fine-tuning has instead of those of the model it starts from."""
    lasting: ClassVar[tuple[str, ...]] = ("formula",)
    """Options that what was learned depends on: fine-tuning cannot change them."""

    def __init__(self, seed: int, options: CommonOptions) -> None:
        self.seed = seed
        self.options = options
        self.columns: tuple[str, ...] = ()
        self.facts: dict[str, int | float | bool | str] = {}
        self._chance = Chance(seed)
        self._spread = (0.0, 0.0)

    # -- what a kind does -----------------------------------------------------------------------

    @abstractmethod
    def _learn(self, lesson: Lesson, start: Self | None) -> LearningOutcome:
        """Learn to predict labels, from what `start` has learned if there is one."""

    @abstractmethod
    def _rank(self, x: Matrix) -> NDArray[np.float64]:
        """Labels of rows of the model's columns, shape (rows,)."""

    @abstractmethod
    def _packed(self) -> bytes:
        """The file that holds what was learned."""

    @abstractmethod
    def _unpack(self, data: bytes) -> None:
        """Read the file that `_packed` gave. Raises `ValueError`, or `TilewrightError`."""

    # -- the contract ---------------------------------------------------------------------------

    def fit(
        self,
        table: TrainingTable,
        validation: TrainingTable | None = None,
        say: Say = lambda text: None,
        start: Self | None = None,
    ) -> Training:
        """Learn from a table. `validation` tells when to stop; without one some tasks are kept back
        for that. `say` hears how it goes. With `start`, a model of the same kind
        (`models.transfer.registry.refined`), training continues from its columns and what it has
        learned. Raises `TransferError` for a table without valid rows."""
        begun = time.monotonic()
        if start is not None:
            _check_rows(table)
        seconds = 60.0 * self.options.minutes
        rows = len(table)
        if validation is None:
            divide = held_out if start is None else kept_back
            table, validation = divide(table, self.options.held, self.seed)
        if start is None:
            self.columns = known_columns(table, self.options.formula)
        else:
            self.columns = start.columns
        given = _Given.of(table, self.columns), _Given.of(validation, self.columns)
        self._learn_chance(*given, begun + _CHANCE_SHARE * seconds, start)
        lesson = _lesson(*given, self.columns, begun + 0.97 * seconds, say, start)
        del given
        if not len(lesson.x):
            raise TransferError("no row of the table has a latency: there is nothing to learn from")
        learned = self._learn(lesson, start)
        self._spread = self._usual_error(lesson)
        taken = time.monotonic() - begun
        beside = taken - learned.seconds  # to load, to compile, for the chance to run
        full = beside + learned.seconds * learned.asked / max(learned.epochs, 1e-9)
        return Training(rows, taken, round(learned.epochs, 2), full, learned.stopped)

    def predict(self, features: Features, chance: bool = True) -> Prediction:
        """What is expected of each row. Without `chance` nobody asks for that: it is 1."""
        x = aligned(features, self.columns)
        half = half_known(x, self.columns)
        x = uncompiled(x, self.columns, half)
        late = is_late(self.columns)
        compiled: NDArray[np.bool_] = np.asarray(~np.isnan(x[:, late]).all(axis=1))
        spread = np.where(compiled, *self._spread)
        known = np.nan_to_num(reference(x, self.columns).astype(np.float64))
        said = self._rank(x) + known
        if half.any() and compiled.any():
            said[half] += self._constants(x, compiled, said)[half]
        runs = self._chance.predict(x[:, ~late]) if chance else np.ones(len(x))
        return Prediction(said, spread, runs)

    def _constants(
        self, x: Matrix, compiled: NDArray[np.bool_], said: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """By how much what is said of `compiled` rows of a task is above what would be said of them
        before that, for every row, shape (rows,): so that one task's programs, of which some are
        half known, can be compared. Of a task without compiled rows it is that of all."""
        early = self._rank(uncompiled(x[compiled], self.columns, np.ones(compiled.sum(), np.bool_)))
        above, task = said[compiled] - early, of_tasks(x, self.columns)
        rows = np.bincount(task[compiled], minlength=task.max() + 1)
        total = np.bincount(task[compiled], above, minlength=task.max() + 1)
        each = np.where(rows > 0, total / np.maximum(rows, 1), above.mean())
        return np.asarray(each[task], dtype=np.float64)

    def save(self, folder: Path) -> None:
        """Write the model in native formats. Raises `OSError`."""
        index = {
            "kind": self.kind,
            "seed": self.seed,
            "options": self.options.model_dump(),
            "columns": list(self.columns),
            "spread": list(self._spread),
            "facts": self.facts,
        }
        write_model(folder, index, {self.file: self._packed(), CHANCE: self._chance.packed()})

    def read(self, folder: Path, index: Index) -> None:
        """Become the model of a folder with this index. Raises `TransferError`."""
        files = read_files(folder, index, (self.file, CHANCE))
        self.columns, self.facts = tuple(index.columns), dict(index.facts)
        low, high = index.spread
        try:
            self._spread = (low, high)
            self._unpack(files[self.file])
            self._chance.unpack(files[CHANCE])
        except (ValueError, TilewrightError) as error:
            raise no_model(folder, error) from None

    def _learn_chance(self, given: _Given, held: _Given, until: float, start: Self | None) -> None:
        early, threads = ~is_late(self.columns), self.options.threads
        if start is None:
            self._chance.fit(given.x[:, early], given.valid, threads, until)
            return
        if not np.isfinite(given.x).any():
            raise TransferError(
                "the dataset has none of the columns of the model: there is nothing to learn from; "
                "name a dataset of the kind of hardware that the model knows, or another model"
            )
        kept = held.x[:, early], held.valid.astype(np.float32)
        self._chance.refine(start._chance, given.x[:, early], given.valid, kept, threads, until)

    def _usual_error(self, lesson: Lesson) -> tuple[float, float]:
        """Deviation on the rows kept back, centred: compiled, and before that."""
        off = []
        for y, hidden in zip(lesson.held_y, (0.0, 1.0), strict=True):
            x, _ = masked(lesson.held_x, lesson.names, hidden, 0.0, 0)
            off.append(float(np.std(self._rank(x) - y)) if len(x) else 0.0)
        return off[0], off[1]


@dataclass(frozen=True)
class _Given:
    """Rows of a model's columns (rows, columns), and of each its labels, its task and whether it
    has a latency, (rows,)."""

    x: Matrix
    y: tuple[Labels, Labels]
    task: NDArray[np.int64]
    valid: NDArray[np.bool_]

    @staticmethod
    def of(table: TrainingTable, names: tuple[str, ...]) -> _Given:
        x = aligned(table.features, names)
        x = uncompiled(x, names, half_known(x, names))
        return _Given(x, labels(table, x, names), table.task, table.valid)

    def learned(
        self, names: tuple[str, ...], start: Transferred | None
    ) -> tuple[Matrix, tuple[Labels, Labels]]:
        """Rows with a latency and their labels. With `start`, less what it is off by in each task
        on average: few rows do not tell the constants of tasks, and nobody asks for them."""
        x, task = self.x[self.valid], self.task[self.valid]
        compiled, before = (y[self.valid] for y in self.y)
        if start is None or not len(x):
            return x, (compiled, before)
        early = masked(x, names, 1.0, 0.0, 0)[0]
        return x, (
            less_constants(compiled, start._rank(x), task),
            less_constants(before, start._rank(early), task),
        )


def _lesson(
    given: _Given, held: _Given, names: tuple[str, ...], until: float, say: Say,
    start: Transferred | None,
) -> Lesson:  # fmt: skip
    return Lesson(names, *given.learned(names, start), *held.learned(names, start), until, say)


def _check_rows(table: TrainingTable) -> None:
    """Raises `TransferError` for a table that is too small to learn from."""
    if (count := int(table.valid.sum())) < LEAST_VALID:
        raise TransferError(
            f"{count} of {len(table)} rows to learn from have a latency, and fine-tuning takes "
            f"{LEAST_VALID}; measure more: tilewright dataset build --target TARGET --rows N"
        )


def options_of(kind: type[Transferred], given: Mapping[str, object] | None = None) -> CommonOptions:
    """The options of a kind. Raises `TransferError` for one that it does not know, or a value it
    cannot take."""
    fields = kind.options_type.model_fields
    try:
        return kind.options_type.model_validate(dict(given or {}))
    except ValidationError as error:
        first = error.errors()[0]
        raise TransferError(
            f"option {'.'.join(map(str, first['loc']))} of {kind.kind}: {first['msg']}; there are "
            f"{', '.join(fields)}"
        ) from None


def prior_from(model: Transferred, problem: Problem) -> TransferredPrior:
    """What `model` says of configs of the problem, (n, knobs), before or after compiling. It is
    asked for the chance to run before: compiling reveals nothing of that."""

    def ask(configs: Configs, hidden: Features | None) -> Belief:
        known = columns_of(problem.workload, problem.space, configs, problem.hardware, hidden)
        said = model.predict(known, chance=hidden is None)
        return Belief(said.log_latency, said.spread, said.chance)

    return ask
