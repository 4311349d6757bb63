"""Compares the visible features of configs with hand-calculated values."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.models.features import gp_features, tree_features, volumes
from tilewright.targets.base import Knob, Space
from tilewright.targets.workload import Workload

# 3×3 kernel, stride 2, padding 1: 16×16 in, 8×8 out.
WORKLOAD = Workload("conv2d", 1, 64, 16, 16, 64, kernel_h=3, kernel_w=3, stride_h=2, stride_w=2,
                    pad_top=1, pad_left=1, pad_bottom=1, pad_right=1)  # fmt: skip
SPACE = Space(
    "hand",
    (Knob("tile_h", (1, 2, 3, 8)), Knob("tile_w", (1, 4, 8)), Knob("tile_co", (1, 2, 4)),
     Knob("tile_ci", (1, 4)), Knob("h_nthread", (1, 2)), Knob("order", (0, 1, 2))),
)  # fmt: skip
# tile_h 3, tile_w 4, tile_co 2, tile_ci 4, two threads, order 1
CONFIG = np.array([[2, 1, 1, 1, 1, 1]], dtype=np.int32)


def _row() -> dict[str, float]:
    features = tree_features(WORKLOAD, SPACE, CONFIG)
    assert features.matrix.shape == (1, len(features.names))
    return dict(zip(features.names, features.matrix[0].tolist(), strict=True))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log2_tile_h", np.log2(3)),
        ("log2_tile_w", 2.0),
        ("log2_parts_tile_h", np.log2(3)),  # 8 rows in tiles of 3 are three parts
        ("waste_tile_h", 1 / 8),  # three tiles cover 9 rows
        ("log2_parts_tile_w", 1.0),
        ("waste_tile_co", None),  # never any waste, so there is no such column
        ("whole_tile_h", 0.0),
        ("one_tile_h", 0.0),
        ("log2_parts_tile_co", 1.0),  # 4 blocks in tiles of 2
        ("whole_tile_ci", 1.0),
        ("rest_tile_h_h_nthread", 1.0),  # three parts on two threads
        ("rest_tile_w_h_nthread", 0.0),
        # Window of 3×4 outputs: (2·2 + 3) × (3·2 + 3) rows and columns, 4 channels, two threads.
        ("log2_inp_volume", np.log2(4 * 7 * 9 * 2)),
        ("log2_wgt_volume", np.log2(4 * 2 * 9 * 2)),
        ("log2_out_volume", np.log2(2 * 3 * 4 * 2)),
    ],
)
def test_a_column_is_what_one_works_out_by_hand(name: str, value: float | None) -> None:
    row = _row()
    if value is None:
        assert name not in row
    else:
        assert row[name] == pytest.approx(value)


def test_rows_of_the_batch_multiply_what_is_read_and_written() -> None:
    values = {"tile_b": np.array([6.0]), "tile_w": np.array([1.0]), "tile_ci": np.array([4.0])}
    dense = Workload("dense", 12, 64, 1, 1, 64)
    result = volumes(dense, values)
    assert result["log2_inp_volume"] == pytest.approx(np.log2(24))
    assert result["log2_wgt_volume"] == pytest.approx(np.log2(4))
    assert result["log2_out_volume"] == pytest.approx(np.log2(6))


def test_slots_multiply_the_working_set_they_hold() -> None:
    values = {"tile_h": np.array([2.0]), "tile_w": np.array([2.0]), "tile_ci": np.array([4.0]),
              "tile_co": np.array([1.0])}  # fmt: skip
    alone = volumes(WORKLOAD, values)
    twice = volumes(WORKLOAD, values | {"inp_slots": np.array([2.0]), "wgt_slots": np.array([0.0])})
    assert twice["log2_inp_volume"] - alone["log2_inp_volume"] == pytest.approx(1.0)
    assert twice["log2_wgt_volume"] == alone["log2_wgt_volume"]  # no knob means one slot
    assert volumes(WORKLOAD, {"depth": np.array([1.0])}) == {}


@pytest.mark.parametrize("view", [tree_features, gp_features])
def test_every_column_varies_and_has_a_name_of_its_own(view) -> None:  # type: ignore[no-untyped-def]
    every = SPACE.unravel(np.arange(SPACE.size))
    features = view(WORKLOAD, SPACE, every)
    matrix, names = features.matrix, features.names
    assert len(set(names)) == len(names) == matrix.shape[1]
    assert np.isfinite(matrix).all()
    assert (np.ptp(matrix, axis=0) > 0).all()


def test_smooth_columns_are_on_one_scale_and_no_two_say_the_same() -> None:
    every = SPACE.unravel(np.arange(SPACE.size))
    features = gp_features(WORKLOAD, SPACE, every)
    matrix, names = features.matrix, features.names
    np.testing.assert_allclose(matrix.mean(axis=0), 0.0, atol=0.15)
    np.testing.assert_allclose(matrix.std(axis=0), 1.0, atol=0.15)
    apart = np.abs(np.corrcoef(matrix.T)) - np.eye(len(names))
    assert apart.max() < 0.99
    assert {"order_is_0", "order_is_1", "order_is_2"} <= set(names)


def test_a_config_has_the_features_it_has_among_others() -> None:
    every = SPACE.unravel(np.arange(SPACE.size))
    for view in (tree_features, gp_features):
        whole = view(WORKLOAD, SPACE, every).matrix
        row = int(SPACE.ravel(CONFIG)[0])
        np.testing.assert_array_equal(view(WORKLOAD, SPACE, CONFIG).matrix[0], whole[row])
