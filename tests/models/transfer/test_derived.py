"""Tests derived columns: ratios in units of the hardware, NaN where an operand is unknown."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.transfer.tables import small_table
from tilewright.models.transfer.columns import with_derived
from tilewright.models.transfer.neural import tokens_of
from tilewright.models.transfer.training_data import (
    is_late,
    known_columns,
    mask_values,
    select_columns,
)
from tilewright.targets.features import Features


def _one(**columns: float) -> dict[str, float]:
    names = [name.replace("__", " ") for name in columns]
    given = with_derived(Features.from_names(np.array([[*columns.values()]]), names))
    return dict(zip(given.names, given.matrix[0].tolist(), strict=True))


MACHINE = {
    "workload__macs": 20.0, "hardware__batch": 0.0, "hardware__block_in": 4.0,
    "hardware__block_out": 4.0, "hardware__bus_bytes": 3.0, "hardware__memory_latency_cycles": 5.0,
}  # fmt: skip


def test_bytes_are_cycles_of_the_bus_beside_those_of_all_multiplications() -> None:
    result = _one(**MACHINE, program__out_bytes=np.log2(1 + 8 * 4096))
    assert result["derived peak"] == pytest.approx(12.0)
    assert result["derived late store cycles"] == pytest.approx(0.0, abs=1e-3)
    assert np.isnan(result["derived late load cycles"]), "nothing is known of what is loaded"


def test_twice_the_bus_halves_the_cycles_of_transfers_and_leaves_those_of_compute() -> None:
    counts = {
        "program__out_bytes": 15.0, "program__gemm_iterations": 12.0,
        "program__reset_iterations": 3.0, "program__alu_iterations": 4.0,
    }  # fmt: skip
    narrow, wide = (_one(**MACHINE | {"hardware__bus_bytes": bus}, **counts) for bus in (3.0, 4.0))
    store, compute = "derived late store cycles", "derived late compute cycles"
    assert narrow[store] - wide[store] == pytest.approx(1.0, abs=1e-2)
    assert narrow[compute] == wide[compute]


def test_what_compiling_reveals_makes_late_columns_and_no_others() -> None:
    table = small_table()
    names = known_columns(table)
    late = is_late(names)
    before = np.array([not name.startswith("program ") for name in table.features.names])
    visible = Features(
        table.features.matrix[:, before],
        tuple(c for c, stays in zip(table.features.columns, before, strict=True) if stays),
    )
    x = select_columns(visible, names)
    assert np.isnan(x[:, late]).all()
    whole = select_columns(table.features, names)
    assert np.array_equal(x[:, ~late], whole[:, ~late], equal_nan=True)
    gone, uncompiled = mask_values(whole, names, 0.5, 0.0, 0)
    lost = np.isnan(gone[:, late]).all(axis=1)
    assert np.array_equal(gone[:, ~late], whole[:, ~late], equal_nan=True)
    assert lost[uncompiled].all()
    assert 0.4 < lost[table.valid].mean() < 0.6


def test_knobs_are_tokens_with_the_columns_that_tell_of_them() -> None:
    names = [
        "hardware bus_bytes", "schedule log2_tile_h", "schedule log2_parts_tile_h",
        "schedule waste_tile_h", "schedule log2_parts_oc", "schedule log2_inp_volume",
        "schedule rest_tile_h_oc_nthread", "schedule log2_oc_nthread",
    ]  # fmt: skip
    tokens = tokens_of(names)
    assert tokens.knobs == ("tile_h", "parts_oc", "oc_nthread")
    assert tokens.columns == ((1, 2, 3), (4,), (7,))
    assert tokens.others == (0, 5, 6)


def test_counts_of_a_gemmini_are_cycles_beside_the_same_peak() -> None:
    """The program feeds 4,096 rows and moves 4,096 beats of 8 bytes, two cycles each.

    It also makes 2,048 memory requests, 16 at a time.
    """
    counts = {
        "program__fed_cycles": np.log2(1 + 4096), "program__stored_bytes": 0.0,
        "program__data_bytes": np.log2(1 + 8 * 4096), "program__weight_bytes": 0.0,
        "program__bias_bytes": 0.0, "program__first_bytes": 0.0, "program__write_requests": 0.0,
        "program__read_requests": np.log2(1 + 2048), "hardware__cycles_per_beat": 1.0,
    }  # fmt: skip
    result = _one(**MACHINE, **counts)
    assert result["derived late compute cycles"] == pytest.approx(0.0, abs=1e-3)
    assert result["derived late load cycles"] == pytest.approx(1.0, abs=1e-3)
    assert result["derived late reference"] == pytest.approx(1.0, abs=1e-3)
    slow = _one(**MACHINE | {"hardware__memory_latency_cycles": 8.0}, **counts)
    requests = 2048 * (256 + 7) / 16
    assert slow["derived late load busy"] == pytest.approx(np.log2(requests / 4096), abs=1e-3)
    lacking = {name: value for name, value in counts.items() if "bias" not in name}
    assert np.isnan(_one(**MACHINE, **lacking)["derived late reference"])
