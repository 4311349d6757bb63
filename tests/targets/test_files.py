"""Tests file helpers: writes are atomic, bytes are reproducible, and bad files are refused."""

from __future__ import annotations

import io
import os
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tilewright.core.files import (
    MAX_JSON_BYTES,
    UnsafeFile,
    as_object,
    canonical,
    pack_arrays,
    pack_files,
    providing,
    read_json,
    read_json_file,
    read_plain,
    unpack_arrays,
    unpack_files,
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


ARRAYS = {
    "scalar": np.float64(3.5), "empty": np.zeros((0, 3), np.int8), "columns": np.eye(3, 4).T,
    "by columns": np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4)),
    "big": np.arange(5, dtype=">u4"), "half": np.ones((2, 1, 2), np.float16),
    "bool": np.array([True, False]), "text": np.array(["α", "bcd"]), "no text": np.array([""] * 3),
    "bytes": np.array([b"ab", b"c"]), "complex": np.array([1 + 2j]),
}  # fmt: skip


@pytest.mark.parametrize("compressed", [False, True])
def test_files_of_numpy_are_read_as_numpy_reads_them(compressed: bool) -> None:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **ARRAYS)  # type: ignore[arg-type]
    with np.load(io.BytesIO(buffer.getvalue()), allow_pickle=False) as expected:
        arrays = unpack_arrays(buffer.getvalue())
        assert list(arrays) == expected.files
        for name, array in arrays.items():
            assert array.dtype == expected[name].dtype
            assert array.flags.writeable
            assert array.flags.aligned
            np.testing.assert_array_equal(array, expected[name])


def npy(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """Return an NPY file with any header."""
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


SHAPE = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"
LIES = {
    "huge": npy(SHAPE.format("<f8", (1 << 33,)), bytes(64)),
    "beyond 64 bits": npy(SHAPE.format("<f8", (1 << 62, 1 << 62)), bytes(64)),
    "negative": npy(SHAPE.format("<f8", (-8, -1)), bytes(64)),
    "of nothing": npy(SHAPE.format("<U0", (1 << 60,))),
    "objects": npy(SHAPE.format("|O", (8,)), bytes(64)),
    "cut": npy(SHAPE.format("<f8", (9,)), bytes(64)),
    "longer": npy(SHAPE.format("<f8", (7,)), bytes(64)),
    "version": npy(SHAPE.format("<f8", (8,)), bytes(64), b"\3\0"),
    "no array": b"import os",
}  # fmt: skip


@pytest.mark.attack
@pytest.mark.parametrize("name", LIES)
def test_arrays_ask_for_no_more_memory_than_their_file_has(name: str) -> None:
    packed = pack_files({"x.npy": LIES[name]})
    tracemalloc.start()
    with pytest.raises(ValueError, match="not a file of arrays"):
        unpack_arrays(packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.attack
def test_archives_that_unpack_to_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.core.files.MAX_UNPACKED_BYTES", 1 << 20)
    packed = pack_arrays({"x": np.zeros(1 << 17)}, level=9)
    assert len(packed) < 1 << 13
    for unpack in (unpack_arrays, unpack_files):
        with pytest.raises(ValueError, match="when unpacked"):
            unpack(packed)  # type: ignore[operator]


@pytest.mark.attack
@pytest.mark.parametrize("text", [b"[" * 5000 + b"]" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000])
def test_json_is_neither_deep_nor_large(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json_file(tmp_path / "x.json")
    for depth in range(900, 1000):  # can be read, but is almost too deep to be printed
        with suppress(ValueError):
            as_object(read_json(b"[" * depth + b"]" * depth))
    os.truncate(tmp_path / "x.json", MAX_JSON_BYTES + 1)
    with pytest.raises(UnsafeFile, match="larger than the limit of 33554432 bytes"):
        read_json_file(tmp_path / "x.json")


@pytest.mark.attack
def test_a_file_is_read_in_one_piece(tmp_path: Path) -> None:
    """Reading in pieces and joining them would take twice the memory."""
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", size := 64 << 20)
    tracemalloc.start()
    assert len(read_plain(tmp_path / "sparse")) == size
    with pytest.raises(UnsafeFile, match="larger"):
        read_plain(tmp_path / "sparse", limit=size - 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * size


def test_packing_again_later_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = pack_arrays({"b": np.arange(4), "a": np.zeros(2)})
    later = time.time() + 86_400
    monkeypatch.setattr(time, "time", lambda: later)  # `zipfile` reads the time
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
