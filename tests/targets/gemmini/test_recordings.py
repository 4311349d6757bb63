"""Compares both simulators with recordings of Gemmini's RTL: all bytes and event cycles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.gemmini.recordings import RecordedPart, RecordedStream, compare, read_index
from tilewright.targets import gemmini
from tilewright.targets.gemmini.faults import StreamError
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.timing import time_stream

DATA = Path(__file__).parents[2] / "data" / "gemmini"
INDEX = read_index(DATA)
STREAMS = {"random": 40, "micro": 572, "pairs": 120, "kernels": 18, "loop_ws": 12}
"""Number of recorded streams per part. All of them are reproduced exactly."""


@pytest.mark.slow(seconds=0.7)
@pytest.mark.parametrize(
    "every",
    [
        pytest.param(6, marks=pytest.mark.slow(seconds=20)),
        pytest.param(1, marks=pytest.mark.nightly(seconds=120)),
    ],
)
@pytest.mark.parametrize("name", STREAMS)
def test_memory_totals_and_events_are_those_of_the_rtl(name: str, every: int) -> None:
    result = compare(RecordedPart(DATA, INDEX, name), every=every)
    assert sum(kind.streams for kind in result.values()) == -(-STREAMS[name] // every)
    assert [kind for kind, item in result.items() if not item.all_agree] == []


@pytest.mark.parametrize(("part", "number"), [("micro", 0), ("kernels", 1), ("loop_ws", 0)])
def test_the_short_way_in_takes_plain_sequences(part: str, number: int) -> None:
    recorded = RecordedPart(DATA, INDEX, part).stream(number)
    commands = [command.tolist() for command in recorded.commands]
    after = gemmini.execute(*commands, recorded.before.tobytes(), recorded.base, INDEX["machine"])
    assert after == recorded.after.tobytes()
    for setting, expected in zip(INDEX["settings"], recorded.cycles, strict=True):
        total, events = gemmini.cycles(*commands, setting, INDEX["machine"])
        assert total == expected
        assert events["accept"].tolist() == sorted(events["accept"].tolist())


def test_requests_at_the_port_are_as_many_as_recorded() -> None:
    part = RecordedPart(DATA, INDEX, "pairs")
    spec = part.specs()[0]
    for n in range(10):
        requests = time_stream(part.stream(n).commands, spec, 10_000).requests
        reads = int((requests[:, 1] >= 16).sum())
        assert reads == part.arrays["rd_reqs"][n, 0]
        assert len(requests) - reads == part.arrays["wr_reqs"][n, 0]


def test_a_run_repeats_itself() -> None:
    part = RecordedPart(DATA, INDEX, "random")
    recorded, spec = part.stream(0), part.specs()[2]
    one, two = time_stream(recorded.commands, spec), time_stream(recorded.commands, spec)
    assert one.total == two.total
    for name, times in one.events.items():
        np.testing.assert_array_equal(times, two.events[name])


def test_streams_that_stop_the_rtl_are_refused() -> None:
    part = RecordedPart(DATA, INDEX, "invalid")
    spec = part.specs()[0]
    refused = {item.meta["id"] for item in part if not _runs(item, spec)}
    stops = {stream["id"] for stream in part.streams if stream["rtl"] == "hang"}
    assert stops <= refused
    legal = {stream["id"] for stream in part.streams if stream["class"] == "none"}
    # MVOUT of the garbage address runs on the RTL, but writes more bytes than asked.
    assert legal & refused == {"invalid_041"}


def _runs(recorded: RecordedStream, spec: GemminiSpec) -> bool:
    try:
        time_stream(recorded.commands, spec)
    except StreamError:
        return False
    return True


def test_legal_streams_of_the_edge_cases_take_the_recorded_cycles() -> None:
    part = RecordedPart(DATA, INDEX, "invalid")
    spec, differing = part.specs()[0], {}
    for recorded in part:
        if recorded.meta["rtl"] != "ok":
            continue
        try:
            total = time_stream(recorded.commands, spec).total
        except StreamError:
            continue
        if total != recorded.meta["cycles"]:
            differing[recorded.meta["id"]] = (total, recorded.meta["cycles"])
    assert differing == {}
