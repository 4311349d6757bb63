"""Compares both cycle simulators with RTL measurements: start and end cycles, memory beats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.cycle_stepped import step
from tests.targets.vta_corpus import DATA, INDEX
from tilewright.targets import vta
from tilewright.targets.vta.instruction_format import MODULE_NAMES
from tilewright.targets.vta.program import words_of
from tilewright.targets.vta.timing import simulate_program
from tilewright.targets.vta.timing.simulator import machine_of

CONFIGS = tuple(INDEX["cycles"])


@pytest.fixture(params=CONFIGS)
def corpus(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    part = INDEX["cycles"][request.param]
    with np.load(DATA / part["file"], allow_pickle=False) as archive:
        return part, {name: archive[name] for name in archive.files}


def test_every_measured_stream_is_reproduced_exactly(corpus: Any) -> None:
    part, z = corpus
    for n, meta in enumerate(part["streams"]):
        a, b = z["insn_off"][n : n + 2]
        report = simulate_program(
            words_of(z["insn"][a:b].tobytes()), part["spec"], int(z["insn_addr"][n])
        )
        assert report.total == z["cycles"][n], meta["id"]
        np.testing.assert_array_equal(report.modules, z["module"][a:b], meta["id"])
        np.testing.assert_array_equal(report.starts, z["start"][a:b], meta["id"])
        np.testing.assert_array_equal(report.ends, z["end"][a:b], meta["id"])
        moved = (report.read_beats, report.read_bursts, report.write_beats, report.write_bursts)
        measured = tuple(z[k][n] for k in ("rd_beats", "rd_bursts", "wr_beats", "wr_bursts"))
        assert moved == measured, meta["id"]
        assert (report.breakdown.sum(axis=1) == report.total).all()
        assert (report.breakdown >= 0).all()


@pytest.mark.slow(seconds=4)
def test_the_stepped_simulator_reproduces_the_measured_streams(corpus: Any) -> None:
    part, z = corpus
    machine, layout = machine_of(part["spec"])
    for n, meta in enumerate(part["streams"]):
        a, b = z["insn_off"][n : n + 2]
        starts, ends = np.zeros(b - a, np.int64), np.zeros(b - a, np.int64)
        total = step(
            words_of(z["insn"][a:b].tobytes()), int(z["insn_addr"][n]), machine, layout,
            np.zeros(4, np.int64), starts, ends, np.zeros(6, np.int64), 1 << 40,
        )  # fmt: skip
        assert total == z["cycles"][n], meta["id"]
        np.testing.assert_array_equal(starts, z["start"][a:b], meta["id"])
        np.testing.assert_array_equal(ends, z["end"][a:b], meta["id"])


def test_the_short_way_in_takes_bytes_and_a_plain_dictionary() -> None:
    part = INDEX["cycles"]["pynq"]
    with np.load(DATA / part["file"], allow_pickle=False) as z:
        a, b = z["insn_off"][:2]
        total, events = vta.cycles(
            z["insn"][a:b].tobytes(), part["spec"] | {"insn_address": int(z["insn_addr"][0])}
        )
        assert total == z["cycles"][0]
        expected = [MODULE_NAMES[m] for m in z["module"][a:b]]
        assert [module for module, _, _ in events] == expected
        assert events[0][1:] == (z["start"][a], z["end"][a])
