"""Checks that files are complete or absent, and their bytes depend on their content alone."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tilewright.core.files import (
    canonical,
    pack_arrays,
    pack_files,
    providing,
    unpack_arrays,
    write_atomically,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON))
@pytest.mark.slow(seconds=6)
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    backwards = dict(reversed(list(value.items())))
    assert canonical(value) == canonical(backwards)


@pytest.mark.parametrize("value", [float("nan"), np.int64(1), {1, 2}, object()])
def test_canonical_json_refuses_what_has_no_single_text(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        canonical({"value": value})


@given(arrays(np.int32, (3, 2)), st.lists(st.text("αb ", max_size=5), min_size=1, max_size=4))
def test_arrays_come_back_as_they_were(numbers: np.ndarray, words: list[str]) -> None:
    back = unpack_arrays(pack_arrays({"numbers": numbers, "words": np.array(words, np.str_)}))
    assert back["numbers"].dtype == np.int32
    assert (back["numbers"] == numbers).all()
    assert [str(word) for word in back["words"]] == [word.rstrip("\0") for word in words]


def test_packing_again_later_gives_the_same_bytes() -> None:
    first = pack_arrays({"b": np.arange(4), "a": np.zeros(2)})
    time.sleep(2.1)  # a ZIP file's clock ticks every two seconds
    assert pack_arrays({"a": np.zeros(2), "b": np.arange(4)}) == first
    assert pack_files({"x": b"1", "y": b"2"}) == pack_files({"y": b"2", "x": b"1"})


def test_arrays_of_objects_are_refused() -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        pack_arrays({"things": np.array([object()], dtype=object)})


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_two_provide_is_that_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "below" / "mlflow.db"
    with providing(path) as late:
        late.write_bytes(b"late")
        with providing(path) as first:
            first.write_bytes(b"first")
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]
