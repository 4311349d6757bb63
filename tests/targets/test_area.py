"""Tests the area model: exact where the RTL determines it, monotonic where it is an estimate."""

from __future__ import annotations

import pytest

from tilewright.targets.vta.area import Memory, area_of
from tilewright.targets.vta.spec import VtaSpec


def test_the_default_machine_is_the_unit_and_has_the_bits_of_its_rtl() -> None:
    area = area_of(VtaSpec.load("vta-pynq"))
    assert area.relative == 1
    assert area.sram_bits == 2048 * (32 + 128 + 512 + 128) + 1024 * 2048
    assert (area.multipliers, area.tree_adders, area.alu_lanes) == (256, 240, 16)
    assert area.queue_bits == (3 * 512 + 128) * 128


@pytest.mark.parametrize(
    ("preset", "inputs"),
    [
        ("vta-pynq", Memory("inp", 2048 * 128, 2, 2048, 64)),  # an element spans two banks
        ("vta-pynq-128", Memory("inp", 2048 * 128, 1, 2048, 128)),
        ("vta-pynq-512", Memory("inp", 2048 * 128, 4, 512, 128)),  # four elements side by side
    ],
)
def test_banks_follow_the_bus_and_bits_do_not(preset: str, inputs: Memory) -> None:
    area = area_of(VtaSpec.load(preset))
    assert area.memories[1] == inputs
    assert area.sram_bits == area_of(VtaSpec.load("vta-pynq")).sram_bits
    for memory in area.memories:
        assert memory.banks * memory.words * memory.word_bits == memory.bits


def test_more_of_anything_takes_more_area() -> None:
    base = area_of(VtaSpec.load("small"))
    for key, value in (
        ("log_block_in", 5),
        ("log_block_out", 5),
        ("log_batch", 1),
        ("log_inp_buff_size", 15),
        ("uop_depth", 4096),
        ("read_tags", 32),
        ("instruction_queue_entries", 1024),
    ):
        grown = VtaSpec.load("small").model_dump() | {key: value}
        if key in ("log_block_in", "log_block_out", "log_batch"):  # the same depths
            grown["log_wgt_buff_size"] += key != "log_batch"
            grown["log_inp_buff_size"] += key != "log_block_out"
            grown["log_acc_buff_size"] += key != "log_block_in"
        assert area_of(VtaSpec.from_mapping(grown)).relative > base.relative, key
