"""Checks that saved models are read back bit for bit, and that no file is a pickle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.models.matrices import numbered
from tilewright.core.errors import TilewrightError
from tilewright.models import StoreError, load_state, save_state
from tilewright.models.model_registry import build, list_kinds
from tilewright.models.validity import Validity
from tilewright.search.explorer import ExplorerState

RNG = np.random.default_rng(0)
X, ASKED = RNG.integers(1, 50, (90, 4)).astype(float), RNG.integers(1, 50, (40, 4)).astype(float)


def _state() -> ExplorerState:
    """Return a state with a model of every kind, for both tasks, and arrays of several dtypes."""
    models = {}
    for kind in list_kinds():
        for classify in (True,) if kind == "validity" else (False, True):
            model = build(kind, 3, classify, {})
            model.fit(numbered(X), (X[:, 0] > 25) * 1.0 if classify else np.log2(X[:, 0] + X[:, 1]))
            models[f"{kind}-{classify}"] = model
    arrays = {"plan": np.arange(5), "chains": np.array([[1.5, np.nan]]), "none": np.empty(0, bool)}
    return ExplorerState(models, arrays)


@pytest.fixture(scope="module")
def state() -> ExplorerState:
    return _state()


@pytest.fixture
def folder(state: ExplorerState, tmp_path: Path) -> Path:
    save_state(state, tmp_path / "saved")
    return tmp_path / "saved"


def test_every_model_and_array_comes_back_bit_for_bit(state: ExplorerState, folder: Path) -> None:
    result = load_state(folder)
    assert result.models.keys() == state.models.keys()
    for role, model in state.models.items():
        again = result.models[role]
        assert type(again) is type(model)
        assert again.columns == model.columns == ("x0", "x1", "x2", "x3")
        np.testing.assert_array_equal(
            model.predict(numbered(ASKED)), again.predict(numbered(ASKED))
        )
        np.testing.assert_array_equal(model.spread(numbered(ASKED)), again.spread(numbered(ASKED)))
    assert result.arrays.keys() == state.arrays.keys()
    for name, array in state.arrays.items():
        assert result.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(result.arrays[name], array)


def test_the_veto_threshold_survives(folder: Path, state: ExplorerState) -> None:
    before, after = (item.models["validity-True"] for item in (state, load_state(folder)))
    assert isinstance(before, Validity)
    assert isinstance(after, Validity)
    assert after.threshold == before.threshold > 0


def test_what_was_loaded_is_saved_with_equal_predictions(folder: Path, tmp_path: Path) -> None:
    first = load_state(folder)
    save_state(first, tmp_path / "again")
    again = load_state(tmp_path / "again")
    for role, model in first.models.items():
        np.testing.assert_array_equal(
            model.predict(numbered(ASKED)), again.models[role].predict(numbered(ASKED))
        )


def test_no_file_is_or_holds_a_pickle(folder: Path) -> None:
    for path in folder.iterdir():
        assert path.suffix in {".ubj", ".txt", ".npz", ".json"}
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as data:
                assert all(data[name].dtype != object for name in data.files)
        else:
            assert not path.read_bytes().startswith(b"\x80")


def test_an_object_array_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pickle"):
        save_state(ExplorerState(arrays={"bad": np.array([{}], dtype=object)}), tmp_path)


@pytest.mark.slow(seconds=3)
def test_a_byte_changed_in_any_file_is_noticed(folder: Path) -> None:
    files = [path for path in sorted(folder.iterdir()) if path.name != "state.json"]
    assert len(files) == 2 * len(
        list_kinds()
    )  # Model V is a classifier only; the arrays are one file
    for path in files:
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(StoreError, match="was changed after it was saved"):
            load_state(folder)
        path.write_bytes(whole)
    load_state(folder)


@pytest.mark.parametrize(
    "index",
    ["", "{", "[]", "null", "{}", '{"models": []}', '{"models": {"P": 1}, "arrays": {}}',
     '{"models": {}, "arrays": {"file": "arrays.npz"}}',
     '{"models": {}, "arrays": {"file": 5, "sha256": ""}}'],
)  # fmt: skip
def test_an_index_that_is_none_is_refused(folder: Path, index: str) -> None:
    (folder / "state.json").write_text(index)
    with pytest.raises(StoreError, match=r"no usable models.*train again"):
        load_state(folder)


def test_a_missing_file_and_an_unknown_kind_are_refused(folder: Path) -> None:
    index = json.loads((folder / "state.json").read_text())
    index["models"]["forest-True"]["kind"] = "oracle"
    (folder / "state.json").write_text(json.dumps(index))
    with pytest.raises(TilewrightError, match="oracle"):
        load_state(folder)
    (folder / "arrays.npz").unlink()
    with pytest.raises(TilewrightError):
        load_state(folder)
