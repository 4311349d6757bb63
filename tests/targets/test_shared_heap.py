"""Tests threads that share one heap, where memory that is freed too early gets overwritten.

By default the C library gives each of a few threads its own arena, and it leaves a freed chunk
unchanged. The tests run in a separate process that disables both, so that such bugs show.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.draws import nightly_after

CONV = "conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1"
LOWERED = {
    "template": ("template", CONV),
    "extended": ("extended", "dense:n=1,c=2048,o=16"),
    "residual": ("extended", CONV, "bias, residual 4, >> 8, min 127, max 0"),
    "unchecked": ("unchecked", CONV),
    "pool": ("extended", "max_pool:n=1,c=64,h=28,w=28,k=3,s=2,p=1"),
    "pooled": ("extended", "conv2d:n=1,c=16,h=32,w=32,o=32,k=3,s=1,p=1,mk=2,ms=2"),
}
"""The space, the workload and its epilogue of each case."""

COMPARED = """
import os, sys
import numpy as np
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.measure import time_rows
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import parse_workload

space, *text = sys.argv[1:]
lowering = Lowering.for_workload(parse_workload(*text), VtaSpec.load("vta-pynq"), space)
rows = np.random.default_rng(0).permutation(lowering.space.size)[:1024]
values = lowering.space.values(lowering.space.unravel(rows))

def everything(threads):
    os.cpu_count = lambda: threads
    codes, states, insns, uops = lowering.programs(values)
    return codes, states, insns.values, uops.values, *time_rows(lowering, values)

alone = everything(1)
assert (alone[-1] > 0).any()
for _ in range(3):
    for one, many in zip(alone, everything(4), strict=True):
        np.testing.assert_array_equal(one, many)
"""


@pytest.mark.parametrize(
    "lowered", nightly_after(2, [(batch,) for batch in LOWERED.values()], 4), ids=LOWERED
)
@pytest.mark.slow(seconds=4)
def test_threads_that_share_a_heap_compute_what_one_alone_does(lowered: tuple[str, ...]) -> None:
    root = Path(__file__).parents[2]
    heap = "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0:glibc.malloc.perturb=165"
    done = subprocess.run(
        [sys.executable, "-c", COMPARED, *lowered],
        cwd=root, env=os.environ | {"GLIBC_TUNABLES": heap}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
