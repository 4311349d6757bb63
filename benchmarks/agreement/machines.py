"""Lists accelerators beside the stock one: several rows at once, and blocks that are not square."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

STOCK = "vta-pynq"
_BATCHES = (0, 1, 2)
_BLOCKS = ((4, 4), (3, 5), (4, 5), (5, 4), (3, 3))
"""log2 of a block's channels, in and out."""


@dataclass(frozen=True)
class Machine:
    """A target by what `--target` takes; `title` says what is drawn of it."""

    title: str
    target: str


def drawn_machine(seed: int, folder: Path) -> Machine:
    """One with 2 or 4 rows or other blocks than the stock one; its file is written to `folder`."""
    rng = np.random.default_rng([seed, 0x3A])
    batch, blocks = 0, _BLOCKS[0]
    while batch == 0 and blocks == _BLOCKS[0]:
        batch = int(rng.choice(_BATCHES))
        blocks = _BLOCKS[int(rng.integers(len(_BLOCKS)))]
    title = f"{1 << batch}x{1 << blocks[0]}x{1 << blocks[1]}"
    path = folder / f"{title}.json"
    keys = {
        "LOG_BATCH": batch, "LOG_BLOCK_IN": blocks[0], "LOG_BLOCK_OUT": blocks[1],
        # as many elements in each scratchpad as the stock machine has
        "LOG_INP_BUFF_SIZE": 11 + batch + blocks[0], "LOG_WGT_BUFF_SIZE": 10 + sum(blocks),
        "LOG_ACC_BUFF_SIZE": 13 + batch + blocks[1],
        "clock_mhz": 1e6,  # so fast that nothing is left to the CPU for being sooner there
    }  # fmt: skip
    path.write_text(json.dumps(keys))
    return Machine(title, str(path))
