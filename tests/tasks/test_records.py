"""Checks that a stored result is read back unchanged or not at all."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tilewright.core.files import Json
from tilewright.search import Candidates
from tilewright.tasks import codecs
from tilewright.tasks.cached_task import DamagedRecord, Key, Record, RecordSerializer

VALUE = Candidates(np.array([[1, 2], [3, 4]], np.int32), {"P": np.array([0.5, 1.5])}, 3)
DATA = RecordSerializer().dumps(Record(VALUE))


def test_a_result_comes_back_with_the_same_content() -> None:
    result = RecordSerializer().loads(DATA).value
    assert np.array_equal(result.configs, VALUE.configs)
    assert (result.scores["P"].tolist(), result.vetoed) == ([0.5, 1.5], 3)
    assert codecs.digest_of(result) == codecs.digest_of(VALUE)
    assert RecordSerializer().dumps(Record(result)) == DATA


def test_every_edited_byte_of_a_record_is_noticed() -> None:
    for place in range(len(DATA)):
        edited = DATA[:place] + bytes([DATA[place] ^ 1]) + DATA[place + 1 :]
        with pytest.raises(DamagedRecord):
            RecordSerializer().loads(edited)


def test_a_record_that_was_cut_short_is_none() -> None:
    for length in range(len(DATA)):
        with pytest.raises(DamagedRecord):
            RecordSerializer().loads(DATA[:length])


@pytest.mark.parametrize("number", [None, 0, 7])
def test_numbers_come_back(number: int | None) -> None:
    data = RecordSerializer().dumps(Record(number))
    assert RecordSerializer().loads(data).value == number


def test_a_type_without_a_codec_is_refused() -> None:
    with pytest.raises(TypeError, match="no codec for complex"):
        RecordSerializer().dumps(Record(1j))


def test_the_key_depends_on_stage_version_target_and_each_input() -> None:
    inputs: dict[str, Json] = {"state": "a", "history": "b", "n": 8}
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
