"""Tests fine-tuning a model on a few rows of hardware that it has not seen.

A fine-tuned model is kept only if it is reliably better on that hardware.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tilewright.evaluation.datasets.folder import read_table
from tilewright.evaluation.datasets.metrics import score
from tilewright.evaluation.datasets.training import split
from tilewright.models.transfer.contract import TransferError
from tilewright.models.transfer.model import LEAST_VALID, Transferred
from tilewright.models.transfer.registry import continue_from, list_kinds, load_model, make_model
from tilewright.models.transfer.training_data import TrainingTable, less_constants, surely_less
from tilewright.targets.features import Features

SLICE = Path(__file__).parents[2] / "data" / "transfer" / "slice"
QUICK: dict[str, dict[str, object]] = {
    "xgboost": {"trees": 60},
    "lightgbm": {"trees": 60, "leaves": 31},
    "mlp": {"epochs": 20, "units": 32, "batch": 64},
    "attention": {"epochs": 4, "units": 8, "layers": 1},
}
MORE: dict[str, dict[str, object]] = {
    "xgboost": {}, "lightgbm": {},
    "mlp": {"learning_rate": 1e-3}, "attention": {"learning_rate": 1e-2},
}  # fmt: skip
SECONDS = {"mlp": 4, "attention": 7}
KINDS = [
    pytest.param(kind, marks=pytest.mark.nightly(seconds=SECONDS[kind]) if kind in SECONDS else ())
    for kind in QUICK
]


@cache
def tables() -> tuple[TrainingTable, TrainingTable, TrainingTable]:
    """Return rows of three accelerators, and training and test rows of a fourth one."""
    whole = read_table(SLICE)
    last = max(np.unique(whole.hardware), key=lambda h: int((whole.hardware == h).sum()))
    seen = np.isin(whole.hardware, np.arange(4)) & (whole.hardware != last)
    theirs = otherwise(whole.rows(whole.hardware == last))
    train, test = split(theirs, "within_task", 0, 0.3)
    return whole.rows(seen), theirs.rows(train), theirs.rows(test)


def otherwise(table: TrainingTable) -> TrainingTable:
    """Change the latencies as if this hardware, unlike all others, preferred small tile heights."""
    place = table.features.names.index("schedule log2_tile_h")
    slower = 3.0 * np.nan_to_num(table.features.matrix[:, place])
    return replace(table, log_latency=table.log_latency + slower)


@cache
def learned(kind: str) -> Transferred:
    model = make_model(kind, 0, QUICK[kind] | {"threads": 1})
    model.fit(tables()[0])
    return model


@cache
def refitted(kind: str) -> Transferred:
    model = continue_from(learned(kind), 1, MORE[kind])
    model.fit(tables()[1], start=learned(kind))
    return model


def accuracy(model: Transferred, table: TrainingTable) -> float:
    return score(table, model.predict(table.features).log_latency).pairwise_accuracy


def test_every_kind_is_tested() -> None:
    assert list(QUICK) == list_kinds()


@pytest.mark.parametrize("kind", KINDS)
def test_few_rows_of_other_hardware_teach_its_order(kind: str) -> None:
    rows = tables()[2]
    before = learned(kind).predict(tables()[0].features)
    assert accuracy(refitted(kind), rows) > accuracy(learned(kind), rows) + 0.05
    again = learned(kind).predict(tables()[0].features)
    assert np.array_equal(again.log_latency, before.log_latency), "the model it was is changed"
    result = refitted(kind).predict(rows.features)
    assert (result.spread > 0).all()
    assert result.chance[rows.valid].mean() > result.chance[~rows.valid].mean() + 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_files_that_are_read_as_they_were_saved(
    kind: str, tmp_path: Path
) -> None:
    refitted(kind).save(tmp_path / "one")
    again = continue_from(learned(kind), 1, MORE[kind])
    again.fit(tables()[1], start=learned(kind))
    again.save(tmp_path / "other")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes(), path.name
    features = tables()[2].features
    result, usual = load_model(tmp_path / "one").predict(features), refitted(kind).predict(features)
    assert np.array_equal(result.log_latency, usual.log_latency)
    assert np.array_equal(result.chance, usual.chance)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_what_cannot_be_learned_leaves_a_model_as_it_is(kind: str) -> None:
    """The latencies differ from the model's predictions only by noise, which cannot be learned."""
    rows = tables()[1]
    noise = np.random.default_rng(3).normal(0.0, 0.5, len(rows))
    model = continue_from(learned(kind), 0, {"epochs": 5} if kind == "mlp" else {"trees": 30})
    said = learned(kind).predict(rows.features).log_latency
    noisy = replace(rows, log_latency=np.where(rows.valid, said + noise, np.nan))
    model.fit(noisy, start=learned(kind))
    features = tables()[2].features
    assert np.array_equal(
        model.predict(features).log_latency, learned(kind).predict(features).log_latency
    )


def test_columns_are_those_of_the_model_whatever_the_rows_have() -> None:
    rows = tables()[1]
    stays = np.array([not name.startswith("hardware ") for name in rows.features.names])
    columns = tuple(c for c, keep in zip(rows.features.columns, stays, strict=True) if keep)
    foreign = Features.from_names(np.ones((len(rows), 1)), ["schedule log2_magic"])
    fewer = Features(rows.features.matrix[:, stays], columns).append_columns(foreign)
    model = continue_from(learned("xgboost"))
    model.fit(replace(rows, features=fewer), start=learned("xgboost"))
    assert model.columns == learned("xgboost").columns
    nothing = replace(rows, features=foreign)
    with pytest.raises(TransferError, match="none of the columns of the model"):
        continue_from(learned("xgboost")).fit(nothing, start=learned("xgboost"))


def test_options_are_those_of_the_model_unless_they_are_given() -> None:
    start = make_model("mlp", 0, {"units": 32, "drop_column": 0.05, "epochs": 3})
    model = continue_from(start, 0, {"epochs": 7})
    assert model.options.model_dump() == start.options.model_dump() | {
        "epochs": 7, "learning_rate": 1e-4, "batch": 64, "held": 0.2,
    }  # fmt: skip
    with pytest.raises(TransferError, match="units of mlp is 32"):
        continue_from(start, 0, {"units": 64})
    with pytest.raises(TransferError, match="its options are"):
        continue_from(start, 0, {"trees": 64})


def test_too_few_rows_are_counted() -> None:
    rows = tables()[1]
    few = rows.rows(np.flatnonzero(rows.valid)[: LEAST_VALID - 1])
    with pytest.raises(
        TransferError, match=f"^only {LEAST_VALID - 1} of .* dataset build --target"
    ):
        continue_from(learned("xgboost")).fit(few, start=learned("xgboost"))


def test_the_constant_of_a_task_is_what_labels_are_above_on_average() -> None:
    y = np.array([3.0, 5.0, 7.0, 1.0], np.float32)
    constants = less_constants(y, np.array([0.0, 0.0, 7.0, 0.0]), np.array([4, 4, 9, 9]))
    assert constants.tolist() == [-1.0, 1.0, 6.5, 0.5]


def test_a_gain_that_chance_explains_is_none() -> None:
    old = np.array([1.0, 1.1, 0.9, 1.0])
    assert surely_less(old - 0.5, old)
    assert not surely_less(old - np.array([2.0, -1.0, 0.5, -0.9]), old)
    assert not surely_less(old, old)
