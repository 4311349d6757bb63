"""Runs output-stationary programs on both simulators, at the limits of the array's output width."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.gemmini.test_schedules import ROUNDED, expected, in_memory
from tilewright.core.errors import WorkloadError
from tilewright.targets import gemmini, make_target
from tilewright.targets.base import Target
from tilewright.targets.gemmini.lowering.memory_layout import constants
from tilewright.targets.workload import Workload, parse_workload

SUMS_STAY, WEIGHTS_STAY = 0, 1
BARE = ">> even 12, min 127, max -128"
OUTPUT = 0x80000000
DATA = Path(__file__).parents[2] / "data/gemmini"


def knob(target: Target, workload: Workload) -> tuple[int, ...]:
    """Return the values of the knob `dataflow` in a workload's space."""
    return next(k.values for k in target.space(workload).knobs if k.name == "dataflow")


def with_dataflow(target: Target, workload: Workload, flow: int, count: int) -> NDArray[np.int32]:
    """Draw configs with the given data flow and form, shape (n, knobs)."""
    space = target.space(workload)
    names = [knob.name for knob in space.knobs]
    drawn = space.unravel(np.random.default_rng(3).integers(0, space.size, count))
    for name, value in (("dataflow", flow), ("form", 1)):
        column = names.index(name)
        drawn[:, column] = space.knobs[column].values.index(value)
    return drawn


def output(
    target: Target, w: Workload, program: NDArray[np.uint64], tensors: dict[str, NDArray[np.int64]]
) -> NDArray[np.int8]:
    """Run a program and return its output tensor, shape (n, o, oh, ow)."""
    g = target.lowering(w).geometry  # type: ignore[attr-defined]
    image = np.zeros(1 << 21, np.uint8)
    parts = {"data": in_memory(tensors["data"])}
    parts |= constants(g, tensors["weight"], tensors.get("bias"))
    for role, values in parts.items():
        at = g.addresses[role] - OUTPUT
        image[at : at + values.nbytes] = np.ascontiguousarray(values).view(np.uint8).ravel()
    after = gemmini.execute(*program.T, image.tobytes(), OUTPUT)
    at = g.addresses["output"] - OUTPUT
    stored = np.frombuffer(after, np.int8)[at : at + g.pixels * g.output_stride]
    rows = stored.reshape(w.batch, w.out_height, w.out_width, -1)[..., : w.out_channels]
    return np.moveaxis(rows, -1, 1)


@pytest.mark.parametrize(
    ("text", "epilogue"),
    [
        ("conv2d:n=1,c=24,h=6,w=6,o=40,k=1,s=1,p=0", ROUNDED),
        ("dense:n=49,c=31,o=40", ROUNDED),
        ("dense:n=40,c=512,o=24", BARE),
    ],
)
@pytest.mark.parametrize("extreme", [None, -128, 127])
def test_sums_that_stay_in_the_array_are_exact(
    text: str, epilogue: str, extreme: int | None
) -> None:
    """The data is random, or makes every product the largest or smallest possible."""
    target, w = make_target("gemmini"), parse_workload(text, epilogue)
    rng = np.random.default_rng(8)
    tensors = {
        "data": rng.integers(-128, 128, (w.batch, w.in_channels, w.height, w.width)),
        "weight": rng.integers(-128, 128, (w.out_channels, w.in_channels, 1, 1)),
    }
    if extreme is not None:
        tensors = {"data": np.full_like(tensors["data"], -128),
                   "weight": np.full_like(tensors["weight"], extreme)}  # fmt: skip
    if "bias" in epilogue:  # the bias moves large sums back into the int8 range
        tensors["bias"] = rng.integers(-(1 << 19), 1 << 19, w.out_channels)
        if extreme is not None:
            total = -128 * extreme * w.in_channels
            tensors["bias"] = rng.integers(0, 1 << 14, w.out_channels) - total
    want = expected(w, tensors)
    lowered = target.lower(w, with_dataflow(target, w, SUMS_STAY, 6))
    assert lowered.ok.sum() >= 3
    for row in np.flatnonzero(lowered.ok):
        assert np.array_equal(output(target, w, lowered.programs["commands"][row], tensors), want)


def test_a_chain_ends_before_its_sum_needs_more_bits_than_the_array_puts_out() -> None:
    """The space does not offer this schedule: a chain of two blocks would be off by one."""
    target, w = make_target("gemmini"), parse_workload("dense:n=16,c=64,o=16", ROUNDED)
    lowering = target.lowering(w)  # type: ignore[attr-defined]
    knobs = target.space(w).describe(with_dataflow(target, w, WEIGHTS_STAY, 1)[0])
    program = lowering.program("tiles", {**knobs, "dataflow": SUMS_STAY})
    tensors = {
        "data": np.full((16, 64, 1, 1), -128),
        "weight": np.full((16, 64, 1, 1), -128),
        "bias": 128 + np.arange(16) - 64 * 128 * 128,  # at and around a tie
    }
    assert np.array_equal(output(target, w, program, tensors), expected(w, tensors))


def test_programs_of_both_data_flows_are_timed_and_right() -> None:
    target = make_target("gemmini")
    w = parse_workload("conv2d:n=1,c=24,h=7,w=7,o=40,k=1,s=1,p=0", ROUNDED)
    for flow in (SUMS_STAY, WEIGHTS_STAY):
        lowered = target.lower(w, with_dataflow(target, w, flow, 3))
        measured = target.measure(lowered.rows(lowered.ok))
        assert set(measured.status) == {"valid"}
        first = lowered.programs["commands"][int(np.flatnonzero(lowered.ok)[0])]
        assert int(first[0, 1]) >> 2 & 1 == flow, "the bit of CONFIG_EX"


def test_only_sums_whose_20_bits_suffice_stay_in_the_array() -> None:
    target = make_target("gemmini")
    both, one = (SUMS_STAY, WEIGHTS_STAY), (WEIGHTS_STAY,)
    known = {
        ("dense:n=32,c=31,o=16", ROUNDED): both,
        ("dense:n=32,c=32,o=16", ROUNDED): one,  # 32 products of −128 have 21 bits
        ("dense:n=32,c=16,o=16", ROUNDED): one,  # a chain of one block saves nothing
        ("dense:n=32,c=512,o=16", BARE): both,  # sums that saturate at 20 bits also do at 8
        # This workload has the same space, but each block is a separate chain.
        ("dense:n=32,c=512,o=16", BARE.replace("even 12", "even 13")): both,
        ("dense:n=32,c=512,o=16", "+ 1, " + BARE): one,
    }
    for (text, epilogue), flows in known.items():
        assert knob(target, parse_workload(text, epilogue)) == flows, (text, epilogue)


def test_a_scale_that_20_bits_do_not_suffice_for_has_no_chains() -> None:
    """Two workloads share a space, but in the program of this one no sum saturates at 20 bits."""
    target = make_target("gemmini")
    w = parse_workload("dense:n=32,c=512,o=16", BARE.replace("even 12", "even 13"))
    tensors = {"data": np.full((32, 512, 1, 1), -128), "weight": np.full((16, 512, 1, 1), -128)}
    tensors["weight"][8:] = 127
    knobs = target.space(w).describe(with_dataflow(target, w, SUMS_STAY, 1)[0])
    program = target.lowering(w).program("tiles", knobs)  # type: ignore[attr-defined]
    assert np.array_equal(output(target, w, program, tensors), expected(w, tensors))


def test_schedules_of_earlier_versions_keep_weights_in_the_array() -> None:
    target, w = make_target("gemmini"), parse_workload("dense:n=32,c=24,o=16", ROUNDED)
    lowering = target.lowering(w)  # type: ignore[attr-defined]
    config = with_dataflow(target, w, WEIGHTS_STAY, 1)[0]
    knobs = target.space(w).describe(config)
    earlier = {name: value for name, value in knobs.items() if name != "dataflow"}
    assert np.array_equal(lowering.program("tiles", earlier), lowering.program("tiles", knobs))
    with pytest.raises(WorkloadError, match="not a schedule of the space"):
        lowering.program("tiles", {**earlier, "depth": 1})


def test_recordings_have_output_stationary_streams() -> None:
    """`test_recordings` compares these streams byte by byte and event by event."""
    index = json.loads((DATA / "index.json").read_text())
    names = {"matmul_os", "os", "ex_os"}
    streams = [s for part in index["parts"].values() for s in part["streams"]]
    assert sum(s["family"] in names for s in streams) >= 35
