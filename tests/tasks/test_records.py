"""Checks that a stored result comes back as it was, or not at all."""

from __future__ import annotations

import json

import pytest

from tilewright.tasks.cached_task import DamagedRecord, Key, Record, RecordSerializer
from tilewright.tasks.codecs import MISMATCHES, Codec, json_codec

TEXT: Codec[str] = Codec("picture", str.encode, bytes.decode)
DATA = RecordSerializer().dumps(Record("lower/1", TEXT, "the data", {"lowered": 3}))


def test_a_record_comes_back_with_its_key_facts_and_value() -> None:
    record = RecordSerializer().loads(DATA)
    assert (record.key, record.facts, record.value) == ("lower/1", {"lowered": 3}, b"the data")
    assert RecordSerializer().dumps(record) == DATA


def test_every_edited_byte_of_a_record_is_noticed() -> None:
    for place in range(len(DATA)):
        edited = DATA[:place] + bytes([DATA[place] ^ 1]) + DATA[place + 1 :]
        with pytest.raises(DamagedRecord):
            RecordSerializer().loads(edited)


def test_a_record_that_was_cut_short_is_none() -> None:
    for length in range(len(DATA)):
        with pytest.raises(DamagedRecord):
            RecordSerializer().loads(DATA[:length])


def test_a_value_is_decoded_when_it_is_asked_for() -> None:
    record = RecordSerializer().loads(
        Record("verify/1", Codec("mismatches", str.encode, bytes.decode), "no JSON", {}).to_bytes()
    )
    assert record.codec is MISMATCHES
    with pytest.raises(ValueError, match="Expecting value"):
        _ = record.value


def test_what_is_found_has_the_order_of_what_was_computed() -> None:
    """Knobs of a schedule are written in it."""
    knobs = {"tile_w": 1, "tile_h": 2, "order": 0}
    codec = json_codec("knobs", lambda value: value, lambda value: value)
    assert json.dumps(codec.decode(codec.encode(knobs))) == json.dumps(knobs)
    facts = Record("a/1", TEXT, "", {"knobs": knobs})
    assert json.dumps(Record.from_bytes(facts.to_bytes()).facts["knobs"]) == json.dumps(knobs)


def test_the_key_depends_on_stage_version_target_and_each_input() -> None:
    inputs = {"state": "a", "history": "b", "n": 8}
    base = Key("retrain_models", 1, "pynq", inputs).text
    others = [
        Key("filter_candidates", 1, "pynq", inputs).text,
        Key("retrain_models", 2, "pynq", inputs).text,
        Key("retrain_models", 1, "de10", inputs).text,
        *(Key("retrain_models", 1, "pynq", inputs | {name: "x"}).text for name in inputs),
    ]
    assert len({base, *others}) == 1 + len(others)
    assert Key("retrain_models", 1, "pynq", json.loads(json.dumps(inputs))).text == base
    assert base.startswith("retrain_models/")
