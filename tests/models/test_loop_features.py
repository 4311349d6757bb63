"""Compares the loop-nest features of a config with hand-calculated values."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.models.features import loop_features
from tilewright.targets.base import Knob, Space
from tilewright.targets.workload import Workload

WORKLOAD = Workload("conv2d", 1, 64, 16, 16, 64, kernel_h=3, kernel_w=3, stride_h=2, stride_w=2,
                    pad_top=1, pad_left=1, pad_bottom=1, pad_right=1)  # fmt: skip
SPACE = Space(
    "hand",
    (Knob("tile_h", (1, 2, 4, 8)), Knob("tile_w", (1, 4, 8)), Knob("tile_co", (1, 2, 4)),
     Knob("tile_ci", (1, 4)), Knob("h_nthread", (1, 2))),
)  # fmt: skip


def row(*config: int) -> dict[str, float]:
    features = loop_features(WORKLOAD, SPACE, np.array([config], dtype=np.int32))
    return dict(zip(features.names, features.matrix[0].tolist(), strict=True))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("2 h length", 1.0),  # 8 rows in tiles of 4
        ("9 h length", 2.0),
        ("1 co length", 1.0),  # 4 blocks in tiles of 2
        ("5 kh length", np.log2(3)),
        ("1 co topdown", 1.0),
        ("2 h topdown", 2.0),
        ("11 ci bottomup", 2.0),  # the innermost: 4 input blocks
        ("11 ci touches inp", 2.0),
        ("11 ci touches out", 0.0),
        ("11 ci reuses out", 2.0),
        ("7 b touches out", 1 + 2 + 2),  # 2 blocks of 4 × 4 outputs
        ("0 b touches wgt", 2 + 2 + 2 * np.log2(3)),  # all weights: 4 × 4 blocks of 3 × 3
        ("h_nthread", 2.0),
    ],
)
def test_a_loop_is_what_one_works_out_by_hand(name: str, value: float) -> None:
    assert row(2, 1, 1, 1, 1)[name] == pytest.approx(value)


def test_every_config_has_the_same_loops() -> None:
    every = SPACE.unravel(np.arange(SPACE.size))
    features = loop_features(WORKLOAD, SPACE, every)
    assert np.isfinite(features.matrix).all()
    assert len(np.unique(features.matrix, axis=0)) == SPACE.size
