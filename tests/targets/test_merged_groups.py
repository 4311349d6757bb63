"""Tests convolutions with groups narrower than a block, several of which run at once."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.schedule_spaces.vta_programs import program_with_data
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.lint import lint
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.lowering.tensor_packing import random_tensors, reference, unpack_output
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import parse_workload

SQUARE = VtaSpec.load("vta-pynq")
WIDE_IN = VtaSpec.from_mapping({"LOG_BLOCK_IN": 5, "LOG_BLOCK_OUT": 4, "LOG_INP_BUFF_SIZE": 16,
                                "LOG_WGT_BUFF_SIZE": 19})  # fmt: skip
PAIRED = VtaSpec.from_mapping({"LOG_BATCH": 1, "LOG_INP_BUFF_SIZE": 16, "LOG_ACC_BUFF_SIZE": 18})
CLIPS = "min 127, max -128"
LAYERS = [
    "conv2d:n=3,c=48,h=6,w=6,o=24,k=3,p=1,g=3",
    "conv2d:n=3,c=40,h=5,w=5,o=80,k=3,p=1,g=40",
    "conv2d:n=2,c=72,h=6,w=6,o=48,k=1,s=2,g=3",
    "conv2d:n=3,c=40,h=5,w=5,o=40,k=3,g=40",
]
OF_THE_STOCK_RUNTIME = {"instruction_after_finish", "leftover_tokens"}
"""Lint findings that every program of the template has."""
SPACES: dict[SpaceName, str] = {
    "template": f"bias, >> 7, {CLIPS}",
    "extended": f"bias, >> 7, {CLIPS}",
    "unchecked": f">> 7, {CLIPS}",
}


@pytest.mark.parametrize("spec", [SQUARE, WIDE_IN, PAIRED], ids=["16×16", "32×16", "2×16×16"])
@pytest.mark.parametrize("text", LAYERS)
@pytest.mark.parametrize("space", SPACES)
def test_an_image_has_the_blocks_its_channels_fill(
    spec: VtaSpec, text: str, space: SpaceName
) -> None:
    workload = parse_workload(text, SPACES[space])
    lowering = Lowering.for_workload(workload, spec, space)
    geo, m = lowering.geometry, lowering.machine
    images = -(-workload.batch // m.batch)
    inputs = -(-workload.in_channels // m.block_in) * workload.height * workload.width
    outputs = -(-workload.out_channels // m.block_out) * workload.out_height * workload.out_width
    assert geo.inp_bytes == images * inputs * m.inp_bytes
    assert geo.out_bytes == images * outputs * m.out_bytes
    assert _problems(lowering) == []


@pytest.mark.parametrize(
    ("text", "epilogue"),
    [
        ("conv2d:n=3,c=40,h=5,w=5,o=80,k=3,p=1,g=40", f"bias, residual 3, >> 8, {CLIPS}"),
        ("conv2d:n=3,c=40,h=5,w=5,o=80,k=3,p=1,g=40", f"add, >> 8, {CLIPS}"),
        ("conv2d:n=3,c=40,h=5,w=5,o=80,k=3,p=1,g=40", f"bias, relu, add, >> 8, {CLIPS}"),
        ("conv2d:n=3,c=40,h=7,w=7,o=80,k=3,p=1,g=40,mk=3,ms=2,mp=1", f"bias, >> 8, {CLIPS}"),
        ("conv2d:n=3,c=40,h=5,w=5,o=80,k=1,g=40,avg=5", f"bias, >> 8, {CLIPS} | >> 5, {CLIPS}"),
    ],
    ids=["residual", "first added", "later added", "pooled", "averaged"],
)
def test_nor_has_it_more_where_tensors_are_added_or_results_pooled(
    text: str, epilogue: str
) -> None:
    lowering = Lowering.for_workload(parse_workload(text, epilogue), SQUARE, "extended")
    assert lowering.geometry.groups * lowering.geometry.co > lowering.geometry.out_blocks
    assert _problems(lowering) == []


def _problems(lowering: Lowering, programs: int = 6) -> list[str]:
    """Return the problems of random schedules: wrong values and lint findings."""
    rng, result, seen = np.random.default_rng(0), [], 0
    tensors = random_tensors(lowering.workload, lowering.machine, 0)
    expected = reference(lowering.workload, lowering.machine, tensors)
    rows = lowering.space.unravel(rng.integers(0, lowering.space.size, 200))
    for values in lowering.space.values(rows):
        if lowering.kind == "unchecked":
            values = np.minimum(values, (3, 5, 5))
        program = program_with_data(lowering, values, tensors)
        if program is None or seen == programs:
            continue
        seen += 1
        said = {item.name for item in lint(program, lowering.spec) if item.severity != "note"}
        result += said - (OF_THE_STOCK_RUNTIME if lowering.kind == "template" else set())
        after = simulate(program, lowering.spec).dram
        got = unpack_output(lowering.workload, lowering.machine, lowering.geometry, after)
        result += ["numbers"] * int((got != expected).any())
    assert seen
    return result
