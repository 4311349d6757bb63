"""Compares the tile sizes of real layers with those that the vendor's library chooses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tilewright.targets import make_target
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, blocks
from tilewright.targets.gemmini.lowering.vendor_rule import vendor_convolution_tile, vendor_tile
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.workload import parse_workload

TILES = Path(__file__).parents[2] / "data" / "gemmini" / "vendor_tiles.json"
MACHINE = GemminiSpec.load("gemmini-default").machine
ROUNDED = "bias, >> even 8, min 127, max 0"
GemminiLowering = Any


def chosen(kind: str) -> list[list[Any]]:
    return cast("list[list[Any]]", json.loads(TILES.read_text())[kind])


@pytest.mark.parametrize("row", chosen("products"))
def test_a_product_has_the_librarys_tile(row: list[int]) -> None:
    assert vendor_tile(*map(blocks, row[:3]), MACHINE) == tuple(row[3:])


@pytest.mark.parametrize(("text", "tile"), chosen("convolutions"))
def test_a_convolution_has_the_librarys_tile(text: str, tile: list[int]) -> None:
    geometry = BlockGeometry.for_workload(parse_workload(text, ROUNDED))
    assert vendor_convolution_tile(geometry, MACHINE) == tuple(tile)


@pytest.mark.parametrize(
    ("text", "epilogue"),
    [
        ("conv2d:n=1,c=64,h=28,w=28,o=64,k=3,s=1,p=1", ROUNDED),
        ("conv2d:n=1,c=512,h=7,w=7,o=512,k=3,s=1,p=1", ROUNDED),
        ("conv2d:n=1,c=64,h=14,w=14,o=256,k=1,s=1,p=0",
         "bias, residual 7, >> even 9, min 127, max -128"),
        ("conv2d:n=4,c=32,h=14,w=14,o=32,k=3,s=1,p=1", ROUNDED),
        ("conv2d:n=1,c=96,h=14,w=14,o=96,k=3,s=1,p=1,g=96", ROUNDED),
    ],
)  # fmt: skip
def test_a_nest_holds_the_rules_tile_or_what_is_left_of_it(text: str, epilogue: str) -> None:
    workload, target = parse_workload(text, epilogue), make_target("gemmini")
    lowering: GemminiLowering = target.lowering(workload)  # type: ignore[attr-defined]
    _, schedule = lowering.vendor
    knobs = zip(lowering.space.knobs, schedule, strict=True)
    config = np.array([[knob.values.index(value) for knob, value in knobs]], np.int32)
    assert target.verify(target.lower(workload, config)).tolist() == [0]  # type: ignore[attr-defined]
    if lowering.geometry.flat:
        return
    tile = vendor_convolution_tile(lowering.geometry, MACHINE)
    sides = (1, 2, 3, 6)  # rows, columns, output channels, input channels
    whole = [tile[side] if side < 3 else blocks(tile[side]) for side in sides]
    assert all(own <= most for own, most in zip(schedule[2:6], whole, strict=True))
