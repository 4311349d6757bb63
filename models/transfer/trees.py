"""Transfer models of boosted trees: XGBoost and LightGBM. Each split learns a direction for NaN."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.core.lazy_module import lazy_module
from tilewright.models.transfer.contract import CommonOptions
from tilewright.models.transfer.model import LearningOutcome, Lesson, Transferred
from tilewright.models.transfer.timed_trees import PATIENCE, TimedTrees, Validation
from tilewright.models.transfer.training_data import Matrix, mask_values, surely_less
from tilewright.models.trees import LightGBM as NativeLightGBM

lightgbm = lazy_module("lightgbm")


class TreeOptions(CommonOptions):
    """Options of boosted trees."""

    trees: int = Field(default=800, ge=1, le=20_000, description="largest number of trees")
    learning_rate: float = Field(default=0.1, gt=0, le=1, description="weight of each tree")


class XGBoostOptions(TreeOptions):
    """Options of XGBoost."""

    depth: int = Field(default=9, ge=1, le=16, description="largest depth of a tree")


class LightGBMOptions(TreeOptions):
    """Options of LightGBM."""

    leaves: int = Field(
        default=255, ge=2, le=4096, description="largest number of leaves of a tree"
    )


_REFINING = {"trees": 100, "learning_rate": 0.05, "held": 0.2}


class TransferXGBoost(Transferred):
    """Transfer model of XGBoost histogram trees. It is saved as UBJSON."""

    kind: ClassVar[str] = "xgboost"
    file: ClassVar[str] = "model.ubj"
    options_type = XGBoostOptions
    refining: ClassVar[Mapping[str, object]] = _REFINING | {"depth": 5}
    options: XGBoostOptions

    def _learn(self, lesson: Lesson, start: Self | None) -> LearningOutcome:
        options = self.options
        self._trees = TimedTrees(
            self.seed, False,
            {"rounds": options.trees, "max_depth": options.depth, "eta": options.learning_rate,
             "min_child_weight": 8.0, "subsample": 0.8, "colsample_bynode": 0.5, "lambda": 1.0},
        )  # fmt: skip
        (x, y), held = _mask_lesson(lesson, options, self.seed)
        grown, seconds, stopped = self._trees.boost(
            x, y, held, options.threads, lesson.until, None if start is None else start._trees
        )
        return LearningOutcome(grown, options.trees, seconds, stopped)

    def _rank(self, x: Matrix) -> NDArray[np.float64]:
        return self._trees.ask(x)

    def _packed(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            self._trees.save(path)
            return path.read_bytes()

    def _unpack(self, data: bytes) -> None:
        self._trees = TimedTrees(self.seed, False, {})
        _read(self._trees, data, self.file)


class TransferLightGBM(Transferred):
    """Transfer model of LightGBM trees. It is saved in LightGBM's text format."""

    kind: ClassVar[str] = "lightgbm"
    file: ClassVar[str] = "model.txt"
    options_type = LightGBMOptions
    refining: ClassVar[Mapping[str, object]] = _REFINING | {"leaves": 15}
    options: LightGBMOptions

    def _learn(self, lesson: Lesson, start: Self | None) -> LearningOutcome:
        options, begun = self.options, time.monotonic()
        settings = {
            "objective": "regression", "num_leaves": options.leaves, "max_bin": 255,
            "learning_rate": options.learning_rate, "num_threads": options.threads,
            "min_data_in_leaf": 20 if start is None else 8, "feature_fraction_bynode": 0.5,
            "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0,
            "deterministic": True, "force_col_wise": True, "seed": self.seed, "verbosity": -1,
        }  # fmt: skip
        (x, y), held = _mask_lesson(lesson, options, self.seed)
        data = lightgbm.Dataset(x, y, params={"verbosity": -1, "max_bin": 255})
        clock = _Clock(lesson.until)
        watched = [data.create_valid(*held)] if len(held[1]) else []
        early = [lightgbm.early_stopping(PATIENCE, verbose=False)] if watched else []
        self._trees = NativeLightGBM(self.seed, False, {})
        booster = lightgbm.train(
            settings, data, options.trees, valid_sets=watched, callbacks=[clock, *early],
            init_model=None if start is None else start._trees.booster,
        )  # fmt: skip
        best = booster.best_iteration if booster.best_iteration > 0 else booster.current_iteration()
        self._trees.booster = lightgbm.Booster(model_str=booster.model_to_string(best))
        if (
            start is not None
            and watched
            and not surely_less(self._squared_errors(*held), start._squared_errors(*held))
        ):
            self._trees.booster = start._trees.booster
        stopped = "no gain" if clock.grown < options.trees else "epochs"
        return LearningOutcome(
            clock.grown, options.trees, time.monotonic() - begun,
            "minutes" if clock.late else stopped,
        )  # fmt: skip

    def _squared_errors(self, x: Matrix, y: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray((self._rank(x) - y) ** 2)

    def _rank(self, x: Matrix) -> NDArray[np.float64]:
        result = self._trees.booster.predict(x, num_threads=self.options.threads)
        return np.asarray(result, dtype=np.float64)

    def _packed(self) -> bytes:
        return str(self._trees.booster.model_to_string()).encode()

    def _unpack(self, data: bytes) -> None:
        self._trees = NativeLightGBM(self.seed, False, {})
        _read(self._trees, data, self.file)


class _Clock:
    """LightGBM callback that counts trees and ends the training at a given time.

    Args:
        until: latest end of the training, in seconds of `time.monotonic`.
    """

    order = 0

    def __init__(self, until: float) -> None:
        self.until = until
        self.grown = 0
        self.late = False

    def __call__(self, env: Any) -> None:
        self.grown = env.iteration - env.begin_iteration + 1
        if time.monotonic() > self.until:
            self.late = True
            raise lightgbm.callback.EarlyStopException(env.iteration, env.evaluation_result_list)


def _mask_lesson(
    lesson: Lesson, options: CommonOptions, seed: int
) -> tuple[Validation, Validation]:
    """Mask random values of a lesson's rows, so that the model learns from incomplete rows.

    Args:
        lesson: the training data.
        options: probabilities of masking.
        seed: seed of the random generator.

    Returns:
        The masked training rows and the masked held-out rows, each with labels. A row that lost all
        columns that are known only after compilation has the label for rows without compilation
        results.
    """
    parts = []
    for place, (x, (compiled, before)) in enumerate(
        ((lesson.x, lesson.y), (lesson.held_x, lesson.held_y))
    ):
        some, uncompiled = mask_values(
            x, lesson.names, options.drop_program, options.drop_column, seed + place
        )
        parts.append((some, np.where(uncompiled, before, compiled)))
    return parts[0], parts[1]


def _read(trees: TimedTrees | NativeLightGBM, data: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        trees.load(path)
