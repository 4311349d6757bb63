"""Reads the recorded instruction streams of VTA's functional simulator and RTL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / "data" / "vta"
INDEX: dict[str, Any] = json.loads((DATA / "index.json").read_text())


@dataclass(frozen=True)
class Stream:
    meta: dict[str, Any]
    config: dict[str, Any]
    insns: bytes
    before: bytes
    after: bytes | None

    @property
    def base(self) -> int:
        return int(self.meta["base"])


def streams(part: str) -> Iterator[Stream]:
    """Yield the streams of the part `functional` or `invalid`, in the order of the index."""
    index = INDEX[part]
    with np.load(DATA / index["file"], allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for n, meta in enumerate(index["streams"]):
        begin, end = arrays["insn_off"][n : n + 2]
        before = np.zeros(meta["dram_size"] - meta["base"], np.uint8)
        _put(arrays, "seg", "before", n, before, meta["base"])
        after = None
        if "after" in arrays:
            after = before.copy()
            _put(arrays, "wseg", "after", n, after, meta["base"])
        yield Stream(
            meta,
            index["configs"][meta["config"]],
            arrays["insn"][begin:end].tobytes(),
            before.tobytes(),
            None if after is None else after.tobytes(),
        )


def _put(
    arrays: dict[str, Any], runs: str, contents: str, n: int, image: np.ndarray, base: int
) -> None:
    lengths = arrays[f"{runs}_len"]
    places = np.concatenate([[0], np.cumsum(lengths)])
    for run in range(*arrays[f"{runs}_off"][n : n + 2]):
        at = int(arrays[f"{runs}_addr"][run]) - base
        image[at : at + lengths[run]] = arrays[contents][places[run] : places[run + 1]]
