"""Base class of all kinds of transfer models.

The base class handles named columns, labels, the probability that a program is valid, the typical
error, the folder of a saved model, and the prior for a tuner. A subclass implements the learning of
labels, and the storage of the learned state.
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
    half_known,
    held_out,
    is_late,
    kept_back,
    known_columns,
    labels,
    less_constants,
    mask_values,
    of_tasks,
    reference,
    select_columns,
    uncompiled,
)
from tilewright.search.problem import Belief, Problem, TransferredPrior
from tilewright.targets.base import Configs
from tilewright.targets.features import Features

CHANCE = "validity.ubj"
_CHANCE_SHARE = 0.15  # share of the training time for the validity classifier
LEAST_VALID = 32
"""Minimum number of rows with a latency for fine-tuning, including held-out rows. The value does
not come from a publication; we chose it ourselves."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Lesson:
    """Training data of a transfer model, in the form that all kinds of models use.

    Attributes:
        names: names of the columns.
        x: rows of shape (rows, columns); unknown values are NaN.
        y: two arrays of labels of shape (rows,): for rows with compilation results, and for the
            same rows without them; see `training_data.labels`.
        held_x: held-out rows with the same columns, which decide when to stop.
        held_y: labels of the held-out rows, in the same form as `y`.
        until: latest end of the training, in seconds of `time.monotonic`.
        say: callback that receives lines that report the progress.
    """

    names: tuple[str, ...]
    x: Matrix
    y: tuple[Labels, Labels]
    held_x: Matrix
    held_y: tuple[Labels, Labels]
    until: float
    say: Say


@dataclass(frozen=True)
class LearningOutcome:
    """Summary of the learning step of a subclass.

    Attributes:
        epochs: number of completed epochs.
        asked: number of requested epochs.
        seconds: duration without the time to compile code.
        stopped: reason for the end: "epochs", "minutes" or "no gain".
    """

    epochs: float
    asked: int
    seconds: float
    stopped: str


class Transferred(ABC):
    """Base class of cost models that transfer between hardware and workloads.

    Columns are identified by name, so their order does not matter. Columns that were not part of
    the training data are ignored. Missing columns and NaN are treated as unknown values.

    Attributes:
        kind: name of the kind of model.
        file: name of the file that contains the learned state.
        options_type: class of the options.
        refining: default option values for fine-tuning, where they differ from the options of the
            original model.
        lasting: names of options on which the learned weights depend, so that fine-tuning cannot
            change them.
    """

    kind: ClassVar[str]
    file: ClassVar[str]
    options_type: ClassVar[type[CommonOptions]]
    refining: ClassVar[Mapping[str, object]]
    """Default option values for fine-tuning, where they differ from those of the original model."""
    lasting: ClassVar[tuple[str, ...]] = ("formula",)
    """Names of options on which the learned weights depend, so that fine-tuning cannot change
    them."""

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
        """Learn to predict the labels of a lesson, and store the learned state in this object.

        Args:
            lesson: the training data.
            start: model to fine-tune, or None to train from scratch.

        Returns:
            Number of epochs, duration and reason for the end of the learning.
        """

    @abstractmethod
    def _rank(self, x: Matrix) -> NDArray[np.float64]:
        """Predict the labels of rows.

        Args:
            x: rows of shape (rows, columns), with the model's columns in the model's order.

        Returns:
            Labels of shape (rows,), which order the programs of a task by latency.
        """

    @abstractmethod
    def _packed(self) -> bytes:
        """Return the learned state as the bytes of the model's file (`file`)."""

    @abstractmethod
    def _unpack(self, data: bytes) -> None:
        """Restore the learned state from the result of `_packed`.

        Raises:
            ValueError: the data is damaged.
            TilewrightError: the data cannot be used.
        """

    # -- the contract ---------------------------------------------------------------------------

    def fit(
        self,
        table: TrainingTable,
        validation: TrainingTable | None = None,
        say: Say = lambda text: None,
        start: Self | None = None,
    ) -> Training:
        """Train the model on a table.

        Args:
            table: rows to learn from.
            validation: rows that decide when to stop. If None, some tasks of the table are held
                out.
            say: callback that receives lines that report the progress.
            start: model of the same kind to fine-tune (`models.transfer.registry.continue_from`).
                Training continues with its columns and weights.

        Returns:
            A summary of the training.

        Raises:
            TransferError: the table has no valid rows, or too few for fine-tuning.
        """
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
        given = _Given.from_table(table, self.columns), _Given.from_table(validation, self.columns)
        self._learn_chance(*given, begun + _CHANCE_SHARE * seconds, start)
        lesson = _lesson(*given, self.columns, begun + 0.97 * seconds, say, start)
        del given
        if not len(lesson.x):
            raise TransferError(
                "no row of the table has a latency, so there is nothing to learn from; measure "
                "more rows"
            )
        learned = self._learn(lesson, start)
        self._spread = self._usual_error(lesson)
        taken = time.monotonic() - begun
        beside = taken - learned.seconds  # loading, compiling, and the validity classifier
        full = beside + learned.seconds * learned.asked / max(learned.epochs, 1e-9)
        return Training(rows, taken, round(learned.epochs, 2), full, learned.stopped)

    def predict(self, features: Features, chance: bool = True) -> Prediction:
        """Predict the validity of programs, and their latency relative to others of the same task.

        Args:
            features: columns of the programs, one row per program.
            chance: whether to predict the probability that the program is valid. If False, it is
                set to 1.

        Returns:
            Log2 latencies up to an unknown constant per task, their expected errors, and the
            probabilities of being valid.
        """
        x = select_columns(features, self.columns)
        half = half_known(x, self.columns)
        x = uncompiled(x, self.columns, half)
        late = is_late(self.columns)
        compiled: NDArray[np.bool_] = np.asarray(~np.isnan(x[:, late]).all(axis=1))
        spread = np.where(compiled, *self._spread)
        known = np.nan_to_num(reference(x, self.columns).astype(np.float64))
        log_latency = self._rank(x) + known
        if half.any() and compiled.any():
            log_latency[half] += self._constants(x, compiled, log_latency)[half]
        runs = self._chance.predict(x[:, ~late]) if chance else np.ones(len(x))
        return Prediction(log_latency, spread, runs)

    def _constants(
        self, x: Matrix, compiled: NDArray[np.bool_], said: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Estimate by how much predictions with and without compilation results differ, per row.

        Labels with and without compilation results differ by a constant per task. The constant is
        estimated from the compiled rows, for which a second prediction is made without the
        compilation results. A task without compiled rows gets the mean difference of all compiled
        rows.

        Args:
            x: rows of shape (rows, columns).
            compiled: bool array of shape (rows,), True for rows with compilation results.
            said: predictions for all rows, shape (rows,).

        Returns:
            Values to add to predictions without compilation results, shape (rows,).
        """
        early = self._rank(uncompiled(x[compiled], self.columns, np.ones(compiled.sum(), np.bool_)))
        above, task = said[compiled] - early, of_tasks(x, self.columns)
        rows = np.bincount(task[compiled], minlength=task.max() + 1)
        total = np.bincount(task[compiled], above, minlength=task.max() + 1)
        mean_residual = np.where(rows > 0, total / np.maximum(rows, 1), above.mean())
        return np.asarray(mean_residual[task], dtype=np.float64)

    def save(self, folder: Path) -> None:
        """Write the model to a folder in native formats.

        Args:
            folder: folder of the model.

        Raises:
            OSError: a file cannot be written.
        """
        index = {
            "kind": self.kind,
            "seed": self.seed,
            "options": self.options.model_dump(),
            "columns": list(self.columns),
            "spread": list(self._spread),
            "facts": self.facts,
        }
        write_model(folder, index, {self.file: self._packed(), CHANCE: self._chance.to_bytes()})

    def load_saved(self, folder: Path, index: Index) -> None:
        """Load a saved model into this object.

        Args:
            folder: folder of the model.
            index: its index, as `models.transfer.files.read_index` returned it.

        Raises:
            TransferError: the folder contains no usable model.
        """
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
                "the dataset has none of the columns of the model; give a dataset for the "
                "kind of hardware that the model was trained on, or another model"
            )
        kept = held.x[:, early], held.valid.astype(np.float32)
        self._chance.refine(start._chance, given.x[:, early], given.valid, kept, threads, until)

    def _usual_error(self, lesson: Lesson) -> tuple[float, float]:
        """Return the standard deviations of the errors on held-out rows.

        Args:
            lesson: the training data with the held-out rows.

        Returns:
            Standard deviation in log2 latency with all columns, and without the late columns, which
            are known only after compilation. 0 if there are no held-out rows.
        """
        off = []
        for y, hidden in zip(lesson.held_y, (0.0, 1.0), strict=True):
            x, _ = mask_values(lesson.held_x, lesson.names, hidden, 0.0, 0)
            off.append(float(np.std(self._rank(x) - y)) if len(x) else 0.0)
        return off[0], off[1]


@dataclass(frozen=True)
class _Given:
    """Rows of a training table with the columns of a model, labels and task IDs.

    Attributes:
        x: rows of shape (rows, columns).
        y: labels with and without compilation results, two arrays of shape (rows,).
        task: ID of each row's task, shape (rows,).
        valid: bool array of shape (rows,), True for rows with a latency.
    """

    x: Matrix
    y: tuple[Labels, Labels]
    task: NDArray[np.int64]
    valid: NDArray[np.bool_]

    @staticmethod
    def from_table(table: TrainingTable, names: tuple[str, ...]) -> _Given:
        x = select_columns(table.features, names)
        x = uncompiled(x, names, half_known(x, names))
        return _Given(x, labels(table, x, names), table.task, table.valid)

    def training_rows(
        self, names: tuple[str, ...], start: Transferred | None
    ) -> tuple[Matrix, tuple[Labels, Labels]]:
        """Return the rows with a latency, and their labels.

        If `start` is given, the mean difference between labels and its predictions is subtracted
        from the labels of each task. A few rows cannot determine the constants of tasks, and
        predictions do not need these constants.

        Args:
            names: names of the columns.
            start: model to fine-tune, or None.

        Returns:
            Rows of shape (rows, columns), and two arrays of labels of shape (rows,): with and
            without compilation results.
        """
        x, task = self.x[self.valid], self.task[self.valid]
        compiled, before = (y[self.valid] for y in self.y)
        if start is None or not len(x):
            return x, (compiled, before)
        early = mask_values(x, names, 1.0, 0.0, 0)[0]
        return x, (
            less_constants(compiled, start._rank(x), task),
            less_constants(before, start._rank(early), task),
        )


def _lesson(
    given: _Given, held: _Given, names: tuple[str, ...], until: float, say: Say,
    start: Transferred | None,
) -> Lesson:  # fmt: skip
    return Lesson(
        names, *given.training_rows(names, start), *held.training_rows(names, start), until, say
    )


def _check_rows(table: TrainingTable) -> None:
    """Check that a table has enough rows with a latency for fine-tuning.

    Raises:
        TransferError: there are too few rows with a latency.
    """
    if (count := int(table.valid.sum())) < LEAST_VALID:
        raise TransferError(
            f"only {count} of {len(table)} rows have a latency, but fine-tuning needs "
            f"{LEAST_VALID}; measure more: tilewright dataset build --target TARGET --rows N"
        )


def options_of(kind: type[Transferred], given: Mapping[str, object] | None = None) -> CommonOptions:
    """Validate the options of a kind of transfer model and fill in the defaults.

    Args:
        kind: class of the model.
        given: option values by name.

    Returns:
        The complete options.

    Raises:
        TransferError: an option is unknown, or its value is invalid.
    """
    fields = kind.options_type.model_fields
    try:
        return kind.options_type.model_validate(dict(given or {}))
    except ValidationError as error:
        first = error.errors()[0]
        raise TransferError(
            f"option {'.'.join(map(str, first['loc']))} of {kind.kind}: {first['msg']}; its "
            f"options are {', '.join(fields)}"
        ) from None


def prior_from(model: Transferred, problem: Problem) -> TransferredPrior:
    """Build a function with which a tuner predicts configs by a transfer model.

    Args:
        model: the trained model.
        problem: the tuning problem: workload, search space and hardware.

    Returns:
        A function whose arguments are configs of shape (n, knobs) and, after compilation, their
        counters. The probability of being valid is predicted only before compilation; after
        compilation it is 1.
    """

    def ask(configs: Configs, hidden: Features | None) -> Belief:
        known = columns_of(problem.workload, problem.space, configs, problem.hardware, hidden)
        prediction = model.predict(known, chance=hidden is None)
        return Belief(prediction.log_latency, prediction.spread, prediction.chance)

    return ask
