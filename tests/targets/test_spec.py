"""Tests machine specifications, and how invalid ones are refused."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tilewright.core.errors import SpecError, UnknownName
from tilewright.targets.registry import target_remarks
from tilewright.targets.vta.area import area_of
from tilewright.targets.vta.instruction_format import layout_of
from tilewright.targets.vta.spec import VtaSpec, preset_files
from tilewright.targets.vta.spec_summary import properties

STOCK_KEYS = {
    "TARGET": "sim", "HW_VER": "0.0.2", "LOG_INP_WIDTH": 3, "LOG_WGT_WIDTH": 3, "LOG_ACC_WIDTH": 5,
    "LOG_BATCH": 0, "LOG_BLOCK": 4, "LOG_UOP_BUFF_SIZE": 15, "LOG_INP_BUFF_SIZE": 15,
    "LOG_WGT_BUFF_SIZE": 18, "LOG_ACC_BUFF_SIZE": 17,
}  # fmt: skip


def test_the_stock_configuration_file_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "vta_config.json"
    file.write_text(json.dumps(STOCK_KEYS))
    spec = VtaSpec.load(str(file))
    m = spec.machine
    assert (m.inp_bytes, m.wgt_bytes, m.acc_bytes, m.out_bytes) == (16, 256, 64, 16)
    assert (m.log_uop_depth, m.log_inp_depth, m.log_wgt_depth, m.log_acc_depth) == (13, 11, 10, 11)
    assert spec.name == "vta_config"


def test_field_offsets_match_the_stock_configuration() -> None:
    lay = layout_of(VtaSpec.from_mapping(STOCK_KEYS))
    assert (lay.uop_bgn, lay.uop_end, lay.iter_out, lay.iter_in) == (8, 21, 35, 49)
    assert (lay.gemm_dst_out, lay.gemm_dst_in, lay.gemm_src_out) == (64, 75, 86)
    assert (lay.gemm_src_in, lay.gemm_wgt_out, lay.gemm_wgt_in) == (97, 108, 118)
    assert (lay.alu_opcode, lay.alu_use_imm, lay.alu_imm) == (108, 111, 112)


@pytest.mark.parametrize("name", sorted(preset_files()))
def test_every_preset_can_be_encoded_and_says_where_it_comes_from(name: str) -> None:
    spec = VtaSpec.load(name)
    assert spec.name == name
    assert spec.source


@pytest.mark.parametrize(
    ("change", "sum_shown"),
    [
        ({"LOG_BLOCK": 3}, "12 + 12 + 12 = 36 bits"),
        ({"LOG_ACC_BUFF_SIZE": 18}, "12 + 12 + 10 = 34 bits"),
        ({"LOG_ACC_BUFF_SIZE": 18, "LOG_INP_BUFF_SIZE": 15, "LOG_WGT_BUFF_SIZE": 16},
         "12 + 12 + 12 + 12 + 3 + 1 + 16 = 68 bits"),
    ],
)  # fmt: skip
def test_what_cannot_be_encoded_is_refused_with_the_arithmetic(
    change: dict[str, int], sum_shown: str
) -> None:
    with pytest.raises(SpecError) as refused:
        VtaSpec.from_mapping(STOCK_KEYS | change)
    assert sum_shown in str(refused.value)


def test_unknown_targets_and_broken_files_name_cause_and_next_step(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="vta-pynq"):
        VtaSpec.load("vta-pink")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(SpecError, match="is not JSON"):
        VtaSpec.load(str(broken))
    broken.write_text(json.dumps(STOCK_KEYS | {"LOG_BATCH": "two"}))
    with pytest.raises(SpecError, match="LOG_BATCH"):
        VtaSpec.load(str(broken))


def test_names_do_not_change_a_fingerprint_but_hardware_does() -> None:
    spec = VtaSpec.from_mapping(STOCK_KEYS)
    assert spec.fingerprint == VtaSpec.from_mapping(STOCK_KEYS | {"name": "other"}).fingerprint
    assert spec.fingerprint != VtaSpec.from_mapping(STOCK_KEYS | {"bus_bits": 128}).fingerprint


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("LOG_BLOK", "LOG_BLOCK"), ("BUS_BITS", "bus_bits"), ("clock_mzh", "clock_mhz")],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    tmp_path: Path, typo: str, meant: str
) -> None:
    file = tmp_path / "board.json"
    file.write_text(json.dumps(STOCK_KEYS | {typo: 4}))
    message = rf"'board' has the unknown key {typo}; did you mean {meant}\?"
    with pytest.raises(SpecError, match=message):
        VtaSpec.load(str(file))


@pytest.mark.parametrize("keys", [{}, {"name": "mine"}, {"TARGET": "pynq", "HW_VER": "0.0.2"}])
def test_a_file_that_says_nothing_about_a_machine_is_refused(
    tmp_path: Path, keys: dict[str, str]
) -> None:
    file = tmp_path / "empty.json"
    file.write_text(json.dumps(keys))
    with pytest.raises(SpecError, match="does not describe a machine"):
        VtaSpec.load(str(file))


def test_keys_that_are_left_out_are_named_with_what_stands_in(tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    file.write_text(json.dumps({"LOG_BLOCK": 4, "bus_bits": 128}))
    assumed = VtaSpec.load(str(file)).assumed
    assert assumed["LOG_INP_BUFF_SIZE"] == 15
    assert not {"LOG_BLOCK_IN", "LOG_BLOCK_OUT", "bus_bits", "uop_depth"} & set(assumed)
    (remark,) = target_remarks(str(file))
    assert all(f"{key}={value:g}" in remark for key, value in assumed.items())
    assert target_remarks("vta-pynq") == ()


def test_the_sheet_has_every_key_with_a_meaning_and_logarithms_in_plain() -> None:
    sheet = {item.name: item for item in properties(VtaSpec.load("evta-zcu102"))}
    keys = VtaSpec.load("evta-zcu102").model_dump(by_alias=True)
    for name, value in keys.items():
        assert sheet[name].meaning
        if name.startswith("LOG_") and sheet[name].unit.startswith("log2"):
            assert f": {1 << value:,}" in sheet[name].meaning
    assert sheet["clock_mhz"].unit == "MHz"
    assert sheet["LOG_WGT_BUFF_SIZE"].unit == "log2 bytes"
    assert sheet["peak"].value == pytest.approx(256 * 333e6 / 1e9)
    area = area_of(VtaSpec.load("evta-zcu102"))
    assert sheet["relative"].value == pytest.approx(area.relative, abs=1e-3)


def test_an_unknown_name_can_be_handed_on_by_another_process() -> None:
    with ProcessPoolExecutor(1) as pool, pytest.raises(UnknownName, match="mean vta-pynq"):
        pool.submit(VtaSpec.load, "vta-pink").result()
