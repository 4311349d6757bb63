"""Compares the template space with the recorded results of the stock compiler, row by row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.targets.stock import REFERENCE, TABLES, table_of, workload_of
from tilewright.targets import make_target
from tilewright.targets.vta.instruction_format import layout_of
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.geometry import geometry_of
from tilewright.targets.vta.lowering.template import TEMPLATE_KNOBS
from tilewright.targets.vta.spec import VtaSpec

COUNTERS = (
    "instructions", "inp_load_bytes", "wgt_load_bytes", "uop_load_bytes", "out_store_bytes",
    "gemm_iterations", "alu_iterations",
)  # fmt: skip


def _holding(layer: str, row: pd.Series) -> set[str]:
    """Return the failure classes whose defining condition holds for a row."""
    geo = geometry_of(workload_of(layer), VtaSpec.load("vta-pynq").machine)
    th, tw, ci, co = row.tile_h, row.tile_w, row.tile_ci, row.tile_co
    on, hn = row.oc_nthread, row.h_nthread
    v, padded = on * hn, geo.pad_top > 0
    ih, iw = (th - 1) * geo.sh + geo.kh, (tw - 1) * geo.sw + geo.kw
    holds = set()
    if (on == 2 and geo.co // co % 2) or (hn == 2 and geo.oh // th % 2):
        holds.add("MATCH")
    if padded and ci > 1:
        holds.add("PADINNER")
    if not padded and ci > 1 and ih > 1 and iw != geo.w and ih != geo.h:
        holds.add("LOAD2D")
    if co > 1 and th > 1 and tw != geo.ow and th != geo.oh:
        holds.add("STORE2D")
    acc = v * co * th * tw * (4 if v == 4 else 1)
    if v * ci * ih * iw > 2048 or v * co * ci * geo.kh * geo.kw > 1024 or acc > 2048:
        holds.add("ALLOC")
    if v == 4:
        holds.add("NBYTES")
    return holds | {"VERIFYDEP"}


@pytest.mark.parametrize("layer", TABLES)
def test_every_row_of_the_stock_table_comes_out_as_recorded(layer: str) -> None:
    table, workload = table_of(layer), workload_of(layer)
    target = make_target("vta-pynq", "stock")
    space = target.space(workload)
    configs = space.unravel(table["index"].to_numpy(np.int64))
    assert (space.values(configs) == table[list(TEMPLATE_KNOBS)].to_numpy()).all()

    lowered = target.lower(workload, configs)
    measured = target.measure(lowered)

    assert list(measured.status) == list(table["status"])
    valid = measured.valid
    for name in COUNTERS:
        expected = pd.to_numeric(table[name])[valid].to_numpy(np.int64)
        assert (measured.counters[name][valid] == expected).all(), name
    assert (measured.cycles[valid] == pd.to_numeric(table["cycles_pynq"])[valid]).all()
    for failure, row in zip(lowered.failures[~valid], table[~valid].itertuples(), strict=True):
        assert failure in _holding(layer, row), (failure, row)


@pytest.mark.parametrize("layer", sorted(REFERENCE))
@pytest.mark.parametrize("schedule", ["tophub", "fallback"])
@pytest.mark.parametrize(("preset", "column"), [("vta-pynq", "cycles_pynq"),
                                                ("vta-de10", "cycles_de10")])  # fmt: skip
def test_stock_schedules_cost_what_the_stock_stack_costs(
    layer: str, schedule: str, preset: str, column: str
) -> None:
    workload, expected = workload_of(layer), REFERENCE[layer][schedule]
    target = make_target(preset, "stock")
    configs = target.space(workload).unravel(np.array([expected["index"]]))
    measured = target.measure(target.lower(workload, configs))
    assert measured.cycles[0] == expected[column]
    assert measured.counters["instructions"][0] == expected["instructions"]


@pytest.mark.parametrize("layer", ["C4", "C10"])
@pytest.mark.slow(seconds=4)
def test_lifting_the_restrictions_never_costs_cycles(layer: str) -> None:
    workload = workload_of(layer)
    stock, free = (make_target("vta-pynq", space) for space in ("stock", "template"))
    space = stock.space(workload)
    configs = space.unravel(np.arange(space.size))
    before = stock.measure(stock.lower(workload, configs))
    after = free.measure(free.lower(workload, configs))
    assert (after.cycles[before.valid] <= before.cycles[before.valid]).all()
    assert after.valid[before.valid].all()
    assert after.valid.sum() > before.valid.sum()


def test_tophub_weighted_by_count_costs_its_published_total() -> None:
    target = make_target("vta-pynq")
    total = roofline = 0
    for layer, row in REFERENCE.items():
        baseline = target.baseline(workload_of(layer))
        assert baseline.source == "tophub"
        total += baseline.latency.cycles * row["count_in_resnet18"]
        roofline += target.roofline(workload_of(layer)).cycles * row["count_in_resnet18"]
    assert (total, roofline) == (7_251_185, 6_623_232)


def test_an_instruction_names_the_micro_ops_it_was_given() -> None:
    """A 3×3 layer with 14×14 pixels, 64 to 64 channels, and the tile 7×14×1×4.

    It has 84 micro-ops, loops of 14 × 3, and the published factors.
    """
    from tests.targets.packing import get
    from tilewright.targets.workload import parse_workload

    spec = VtaSpec.load("vta-pynq")
    lowering = Lowering.for_workload(
        parse_workload("conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1"), spec, "template", True
    )
    code, insns, _, _ = lowering.program(np.array([1, 7, 14, 1, 4, 1, 1]))
    lay = layout_of(spec)
    gemms = [row for row in insns if int(row[0]) & 7 == 2 and not int(row[0]) >> 7 & 1]
    lo, hi = gemms[0]
    assert code == 0
    assert get(lo, hi, lay.uop_end, 14) - get(lo, hi, lay.uop_bgn, 13) == 84
    assert (get(lo, hi, lay.iter_out, 14), get(lo, hi, lay.iter_in, 14)) == (14, 3)
    assert (get(lo, hi, lay.gemm_dst_out, 11), get(lo, hi, lay.gemm_wgt_in, 10)) == (1, 1)
