"""Checks that the cache key of a fusion decision covers everything that it depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fusion.nets import write
from tilewright.fusion.learned import pretrained
from tilewright.fusion.learned.pretrained import MODEL, POLICY, shipped_digest
from tilewright.targets.registry import make_target
from tilewright.tasks import fusion
from tilewright.tuning.fusion_interface import ToDecide
from tilewright.tuning.options import TuningOptions


def asked(model: Path, **values: Any) -> ToDecide:
    """Return a run whose fusion is still to be decided. Its workloads do not matter here."""
    options = TuningOptions.parse(model=str(model), **{"fusion": "learned", **values})
    return ToDecide(options, make_target("vta-pynq"), "net", (), lambda _: [], lambda _: None)


@pytest.mark.parametrize(
    "values",
    [{"batch": 4}, {"trials": 4}, {"stop_gain": 0.01}, {"seed": 3}, {"fusion": "all"},
     {"tuner": "random"}, {"space": "template"}],
)  # fmt: skip
def test_another_run_decides_anew(tmp_path: Path, values: dict[str, Any]) -> None:
    model = write(tmp_path)
    usual = fusion._key(asked(model), "m").text
    assert fusion._key(asked(model), "m").text == usual
    assert fusion._key(asked(model, **values), "m").text != usual
    assert fusion._key(asked(model, **values), "n").text != usual


def test_other_shipped_models_decide_anew_where_they_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path)
    before = {mode: fusion._key(asked(model, fusion=mode), "m").text for mode in ("learned", "all")}
    monkeypatch.setattr("tilewright.fusion.learned.pretrained.shipped_digest", lambda: "others")
    after = {mode: fusion._key(asked(model, fusion=mode), "m").text for mode in ("learned", "all")}
    assert after["learned"] != before["learned"]
    assert after["all"] == before["all"]


def test_the_digest_of_shipped_models_tells_them_apart(tmp_path: Path) -> None:
    none = shipped_digest(tmp_path)
    for name in (MODEL, POLICY):
        (tmp_path / name).write_bytes((pretrained.FOLDER / name).read_bytes())
    assert shipped_digest(tmp_path) == shipped_digest() != none
    (tmp_path / POLICY).write_bytes((tmp_path / MODEL).read_bytes())
    assert shipped_digest(tmp_path) != shipped_digest()
