"""Checks that every kind of transfer model learns to rank programs and is read back as saved."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.transfer.tables import small_table
from tilewright.core.errors import UnknownName
from tilewright.core.files import digest
from tilewright.evaluation.datasets.metrics import score
from tilewright.evaluation.datasets.training import split
from tilewright.models.transfer.contract import TransferError
from tilewright.models.transfer.files import INDEX, SIGNATURE, trust_model
from tilewright.models.transfer.model import Transferred
from tilewright.models.transfer.registry import list_kinds, load_model, make_model
from tilewright.models.transfer.training_data import (
    known_columns,
    labels,
    reference,
    select_columns,
)
from tilewright.targets.features import Features

QUICK: dict[str, dict[str, object]] = {
    "xgboost": {"trees": 60},
    "lightgbm": {"trees": 60, "leaves": 31},
    "mlp": {"epochs": 40, "units": 32, "batch": 64},
    "attention": {"epochs": 10, "units": 8, "layers": 1},
}
KINDS = [
    pytest.param(
        kind,
        marks=pytest.mark.nightly(seconds=20)
        if kind == "attention"
        else pytest.mark.slow(seconds=0.7),
    )
    for kind in QUICK
]


@cache
def fitted(kind: str) -> Transferred:
    """Return a model that was trained on four fifths of the rows of every task."""
    model = make_model(kind, 0, QUICK[kind] | {"threads": 1})
    train, _ = split(small_table(), "within_task", 0)
    model.fit(small_table().rows(train))
    return model


def test_every_kind_is_tested() -> None:
    assert list(QUICK) == list_kinds()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_orders_programs_it_has_not_seen_and_knows_which_run(kind: str) -> None:
    _, test = split(small_table(), "within_task", 0)
    rows = small_table().rows(test)
    result = fitted(kind).predict(rows.features)
    assert score(rows, result.log_latency).pairwise_accuracy > 0.7
    assert result.chance[rows.valid].mean() > result.chance[~rows.valid].mean() + 0.3
    assert ((result.chance >= 0) & (result.chance <= 1)).all()
    assert (result.spread > 0).all()
    uncompiled = fitted(kind).predict(_without(rows.features, "program "))
    assert score(rows, uncompiled.log_latency).pairwise_accuracy > 0.6
    assert np.array_equal(uncompiled.chance, result.chance), "it was asked of what compiling says"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_columns_are_known_by_name_and_missing_ones_are_unknown_not_zero(
    kind: str, data: st.DataObject
) -> None:
    model, rows = fitted(kind), small_table().features.rows(np.arange(0, len(small_table()), 7))
    usual = model.predict(rows)
    order = data.draw(st.permutations(range(len(rows.names))))
    foreign = Features.from_names(
        np.full((len(rows), 2), 3.0), ["hardware warps", "schedule log2_magic"]
    )
    mixed = Features(rows.matrix[:, order], tuple(rows.columns[k] for k in order)).append_columns(
        foreign
    )
    _assert_same(model.predict(mixed), usual)
    gone = set(data.draw(st.lists(st.sampled_from(rows.names), min_size=1, max_size=40)))
    places = np.array([name not in gone for name in rows.names])
    blank = np.where(places, rows.matrix, np.nan)
    fewer = Features(
        rows.matrix[:, places],
        tuple(c for c, stays in zip(rows.columns, places, strict=True) if stays),
    )
    _assert_same(model.predict(fewer), model.predict(Features(blank, rows.columns)))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_known_of_the_hardware_is_not_hardware_of_zeros(kind: str) -> None:
    model, rows = fitted(kind), small_table().features
    machine = np.array([name.startswith("hardware ") for name in rows.names])
    unknown = model.predict(_without(rows, "hardware ")).log_latency
    zeros = model.predict(Features(np.where(machine, 0.0, rows.matrix), rows.columns)).log_latency
    assert np.isfinite(unknown).all()
    assert not np.allclose(unknown, zeros)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_programs_of_which_something_is_missing_are_ordered_as_well_as_before_compiling(
    kind: str,
) -> None:
    """If one input of the draft formula is missing, the model must fall back to early features."""
    _, test = split(small_table(), "within_task", 0)
    rows = small_table().rows(test)
    early = fitted(kind).predict(_without(rows.features, "program ")).log_latency
    least = score(rows, early).pairwise_accuracy - 0.1
    for name in ("hardware bus_bytes", "workload macs", "program gemms", "program inp_bytes"):
        said = fitted(kind).predict(_without(rows.features, name)).log_latency
        assert score(rows, said).pairwise_accuracy > least, name
    some = np.array(rows.features.matrix)
    some[::2, list(rows.features.names).index("program gemms")] = np.nan  # in every other row
    said = fitted(kind).predict(Features(some, rows.features.columns)).log_latency
    assert score(rows, said).pairwise_accuracy > least


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_read_as_it_was_saved(kind: str, tmp_path: Path) -> None:
    fitted(kind).save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    _assert_same(
        again.predict(small_table().features), fitted(kind).predict(small_table().features)
    )
    suffixes = {path.suffix for path in (tmp_path / "model").iterdir()}
    assert suffixes <= {".json", ".signature", ".ubj", ".txt", ".safetensors"}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_damaged_file_of_a_model_is_refused(
    kind: str, tmp_path_factory: pytest.TempPathFactory, place: float, flip: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged") / "model"
    fitted(kind).save(folder)
    path = folder / fitted(kind).file
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= flip
    path.write_bytes(data)
    with pytest.raises(TransferError, match="was changed after it was saved"):
        load_model(folder)


@pytest.mark.attack
@pytest.mark.parametrize("change", ["digest", "no signature", "another key", "another model's"])
def test_a_model_of_somebody_else_is_loaded_only_once_its_user_trusts_it(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "theirs"))
    folder = tmp_path / "model"
    fitted("xgboost").save(folder)
    load_model(folder)
    if change == "digest":  # an attacker can update digests, but not signatures
        path = folder / fitted("xgboost").file
        path.write_bytes(path.read_bytes() + b"x")
        index = json.loads((folder / INDEX).read_text())
        index["files"][path.name] = digest(path.read_bytes())
        (folder / INDEX).write_text(json.dumps(index))
    elif change == "no signature":
        (folder / SIGNATURE).unlink()
    elif change == "another key":
        monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "ours"))
    else:
        other = make_model("xgboost", 1, {"trees": 2, "threads": 1})
        other.fit(small_table())
        other.save(tmp_path / "other")
        (tmp_path / "other" / SIGNATURE).replace(folder / SIGNATURE)
    with pytest.raises(TransferError, match=r"can run code.*tilewright model trust"):
        load_model(folder)
    if change != "digest":
        trust_model(folder)
        assert load_model(folder).columns == fitted("xgboost").columns


def test_training_ends_when_its_minutes_are_over_and_says_what_all_would_take() -> None:
    model = make_model("xgboost", 0, {"minutes": 0.02, "trees": 20_000, "threads": 1})
    done = model.fit(small_table())
    assert done.stopped in ("minutes", "no gain")
    assert done.full_seconds > done.seconds
    assert done.epochs < 20_000


def test_labels_order_within_tasks_only() -> None:
    table = small_table()
    names = known_columns(table)
    x = select_columns(table.features, names)
    rng = np.random.default_rng(1)
    shift = rng.normal(0, 5, table.task.max() + 1)[table.task]
    moved = type(table)(
        table.features, table.log_latency + shift, table.task, table.workload, table.hardware
    )
    (compiled, before), (_, again) = labels(table, x, names), labels(moved, x, names)
    assert np.allclose(again, before, atol=1e-4, equal_nan=True)
    known = reference(x, names)
    for task in np.unique(table.task):
        rows = np.flatnonzero((table.task == task) & table.valid)
        constant = compiled[rows] + known[rows] - table.log_latency[rows]
        assert np.ptp(constant) < 1e-4
        assert abs(np.mean(before[rows])) < 1e-3


def test_mistakes_name_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="did you mean xgboost"):
        make_model("xgbost")
    with pytest.raises(TransferError, match="its options are"):
        make_model("xgboost", 0, {"leaves": 3})
    with pytest.raises(TransferError, match="model train"):
        load_model(tmp_path)
    nothing = small_table().rows(~small_table().valid)
    with pytest.raises(TransferError, match="latency"):
        make_model("xgboost").fit(nothing)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "jax" else find(name, *a)
    )
    with pytest.raises(TransferError, match=r"tilewright\[neural\]"):
        make_model("mlp")


def _without(features: Features, start: str) -> Features:
    stays = np.array([not name.startswith(start) for name in features.names])
    return Features(
        features.matrix[:, stays],
        tuple(c for c, keep in zip(features.columns, stays, strict=True) if keep),
    )


def _assert_same(one: object, other: object) -> None:
    assert vars(one).keys() == vars(other).keys()
    for name, var in vars(one).items():
        assert np.array_equal(var, vars(other)[name]), name


def test_without_the_formula_nothing_is_derived_by_hand() -> None:
    table = small_table()
    plain = make_model("xgboost", 0, {"trees": 20, "formula": False})
    plain.fit(table)
    assert not [name for name in plain.columns if name.startswith("derived ")]
    assert np.isnan(reference(select_columns(table.features, plain.columns), plain.columns)).all()
    assert score(table, plain.predict(table.features).log_latency).pairwise_accuracy > 0.6
