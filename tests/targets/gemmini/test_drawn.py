"""Compares simulated cycles with RTL runs of random streams: pooling, loops, other memories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.targets.gemmini.isa import CommandStream
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.timing import time_stream

with np.load(
    Path(__file__).parents[2] / "data" / "gemmini" / "drawn.npz", allow_pickle=False
) as archive:
    DRAWN = {name: archive[name] for name in archive.files}


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("kind", DRAWN["kinds"].tolist())
def test_cycles_and_accepted_commands_are_those_of_the_rtl(kind: str) -> None:
    streams = np.flatnonzero(DRAWN["kinds"][DRAWN["kind"]] == kind)
    assert len(streams) >= 14
    for n in streams:
        a, b = DRAWN["off"][n : n + 2]
        stream = CommandStream(*(DRAWN[name][a:b] for name in ("funct", "rs1", "rs2")))
        spec = GemminiSpec(
            memory_latency_cycles=int(DRAWN["latency"][n]),
            cycles_per_beat=int(DRAWN["cycles_per_beat"][n]),
        )
        times = time_stream(stream, spec, 100_000)
        assert times.total == DRAWN["cycles"][n], n
        assert len(times.requests) == DRAWN["requests"][n], n
        np.testing.assert_array_equal(times.events["accept"], DRAWN["accept"][a:b], str(n))
