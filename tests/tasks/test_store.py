"""Checks that the cache gives back what was put in, or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.tasks.artifact_store import DamagedFile, Manifest, Store, cache_key

KEY = "0" * 32


def put_something(root: Path) -> Manifest:
    store = Store(root)
    name = store.put("the data", str.encode, ".npz")
    manifest = Manifest("lower_candidates", KEY, {"lowered": 3}, {"batch": name})
    store.save(manifest)
    return manifest


def test_a_manifest_and_its_data_come_back_in_another_process(tmp_path: Path) -> None:
    saved = put_something(tmp_path)
    found = Store(tmp_path).find("lower_candidates", KEY)
    assert found == saved
    assert Store(tmp_path).get(saved.files["batch"], bytes.decode) == "the data"


def test_nothing_is_found_under_another_key_or_stage(tmp_path: Path) -> None:
    put_something(tmp_path)
    assert Store(tmp_path).find("lower_candidates", "1" * 32) is None
    assert Store(tmp_path).find("retrain_models", KEY) is None


def test_what_is_found_has_the_order_of_what_was_computed(tmp_path: Path) -> None:
    """Knobs of a schedule are written in it."""
    computed = {"knobs": {"tile_w": 1, "tile_h": 2, "order": 0}}
    Store(tmp_path).save(Manifest("measure_baseline", KEY, computed, {}))
    found = Store(tmp_path).find("measure_baseline", KEY)
    assert found is not None
    assert json.dumps(found.values) == json.dumps(computed)


def test_every_edited_byte_of_data_is_noticed(tmp_path: Path) -> None:
    manifest = put_something(tmp_path)
    path = tmp_path / "data" / manifest.files["batch"]
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert Store(tmp_path).find("lower_candidates", KEY) is None
        with pytest.raises(DamagedFile, match="--fresh"):
            Store(tmp_path).get(manifest.files["batch"], bytes.decode)
    path.unlink()
    assert Store(tmp_path).find("lower_candidates", KEY) is None


def test_a_manifest_that_was_cut_short_is_none(tmp_path: Path) -> None:
    put_something(tmp_path)
    path = tmp_path / "manifests" / "lower_candidates" / f"{KEY}.json"
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        assert Store(tmp_path).find("lower_candidates", KEY) is None


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    manifest = put_something(tmp_path)
    path = tmp_path / "data" / manifest.files["batch"]
    path.write_bytes(b"rubbish")
    assert put_something(tmp_path) == manifest
    assert path.read_bytes() == b"the data"


def test_the_key_depends_on_stage_version_target_and_each_input() -> None:
    inputs = {"state": "a", "history": "b", "n": 8}
    base = cache_key("retrain_models", 1, "pynq", inputs)
    others = [
        cache_key("filter_candidates", 1, "pynq", inputs),
        cache_key("retrain_models", 2, "pynq", inputs),
        cache_key("retrain_models", 1, "de10", inputs),
        *(cache_key("retrain_models", 1, "pynq", inputs | {name: "x"}) for name in inputs),
    ]
    assert len({base, *others}) == 1 + len(others)
    assert cache_key("retrain_models", 1, "pynq", json.loads(json.dumps(inputs))) == base
