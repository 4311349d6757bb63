"""Checks that listings are lossless: assembling the text of an instruction gives its words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.vta_corpus import streams
from tilewright.targets.vta.disassembler import ListingError, assemble, disassemble
from tilewright.targets.vta.instruction_format import decode, encode, layout_of
from tilewright.targets.vta.program import words_of
from tilewright.targets.vta.spec import VtaSpec, preset_files

SPECS = [VtaSpec.load(name) for name in preset_files()]
SPECS += [VtaSpec.from_mapping(stream.config) for stream in streams("functional")][::24]
words = st.integers(0, (1 << 128) - 1)


@settings(max_examples=300)
@given(st.lists(words, max_size=8), st.sampled_from(SPECS))
def test_any_words_come_back_from_their_listing(program: list[int], spec: VtaSpec) -> None:
    insns = words_of(b"".join(word.to_bytes(16, "little") for word in program))
    text = disassemble(insns, spec)
    assert len(text.splitlines()) == len(program)
    assert (assemble(text, spec) == insns).all()


@settings(max_examples=300)
@given(words, st.sampled_from(SPECS))
def test_any_word_comes_back_from_its_fields(word: int, spec: VtaSpec) -> None:
    lay = layout_of(spec)
    assert encode(decode(word, lay), lay) == word


@pytest.mark.parametrize("part", ["functional", "invalid"])
def test_recorded_streams_come_back_from_their_listing(part: str) -> None:
    for stream in streams(part):
        spec, insns = VtaSpec.from_mapping(stream.config), words_of(stream.insns)
        assert (assemble(disassemble(insns, spec), spec) == insns).all()


def test_a_double_buffered_program_is_listed(golden: Callable[[str, str], None]) -> None:
    stream = next(s for s in streams("functional") if "conv_vthread2" in s.meta["id"])
    spec = VtaSpec.from_mapping(stream.config)
    golden("conv_vthread2.lst", disassemble(words_of(stream.insns), spec))


def test_listing_of_words_no_implementation_runs(golden: Callable[[str, str], None]) -> None:
    parts = [
        disassemble(words_of(s.insns)[3:5], VtaSpec.from_mapping(s.config))
        for s in streams("invalid")
    ]
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 1 << 64, (24, 2), dtype=np.uint64)
    golden("invalid.lst", "".join(parts) + disassemble(noise, SPECS[0]))


def test_numbers_and_comments_are_free() -> None:
    spec = SPECS[0]
    text = "# a comment\n\n LOAD INP x=0x10 y=2 # load\n17 FINISH\n"
    assert disassemble(assemble(text, spec), spec) == "0  LOAD INP  y=2 x=16\n1  FINISH\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("LOD INP", "unknown instruction 'LOD'"),
        ("LOAD x=1", "LOAD needs one of UOP, WGT"),
        ("LOAD INP x=65536", "65536 is outside of 0 to 65535"),
        ("LOAD INP x=many", "'many' is not a number"),
        ("LOAD INP uop=0:1", "unknown token 'uop=0:1' for LOAD"),
        ("LOAD INP pop=s2g", "is not a queue"),
        ("GEMM loop=3", "needs 2 numbers"),
        ("GEMM rest=0x80", "rest= covers bits"),
        ("ALU ADD imm=40000", "outside of -32768 to 32767"),
        ("WORD", "one 128-bit number"),
    ],
)
def test_a_wrong_line_is_named_with_its_token(line: str, message: str) -> None:
    with pytest.raises(ListingError, match=r"line 2 .*" + message):
        assemble(f"FINISH\n{line}\n", SPECS[0])
