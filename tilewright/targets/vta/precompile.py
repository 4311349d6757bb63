"""Compiles every kernel of the simulator before its first use, in several processes.

A kernel is compiled by running it on a small input; numba caches the code on disk. The jobs of a
group share helpers, which a process compiles only once. `python -m
tilewright.targets.vta.precompile 0 2` runs the first and the third group and prints one line per
job.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np

from tilewright.targets.vta.disassembler import assemble, disassemble
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.lint import lint
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.program import Program
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.timing import simulate_program
from tilewright.targets.workload import parse_workload

PRESET = "vta-pynq"
WORKLOAD = "conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1"
POOLED = WORKLOAD + ",mk=3,ms=2,mp=1"
SUMMED = WORKLOAD + ",xc=16,xi=8"
POOL = "max_pool:n=1,c=32,h=8,w=8,k=3,s=2,p=1"
LISTING = """\
0 LOAD UOP  dram=0x400 y=1 x=1 stride=1
1 GEMM RESET uop=0:1 loop=1x4 dst=4,1
2 LOAD INP  dram=0x110 y=1 x=4 stride=4
3 LOAD WGT  push=l2g dram=0x12 y=1 x=1 stride=1
4 GEMM      pop=l2g uop=0:1 loop=1x4 dst=4,1 src=4,1
5 ALU SHR   push=g2s uop=0:1 loop=1x4 dst=4,1 src=4,1 imm=4
6 STORE OUT pop=g2s push=s2g dram=0x130 y=1 x=4 stride=4
7 LOAD UOP  pop=s2g
8 FINISH
"""
DRAM_BYTES = 4096


def lower(workload: str, space: SpaceName) -> Callable[[], object]:
    """Return a job that lowers a single config of a workload."""

    def job() -> None:
        lowering = Lowering.of(parse_workload(workload), VtaSpec.load(PRESET), space)
        first = np.zeros((1, len(lowering.space.knobs)), np.int32)
        lowering.counts(lowering.space.values(first))

    return job


def enumerate_schedules(space: SpaceName) -> Callable[[], object]:
    """Return a job that estimates, measures and verifies a config, and times a small space."""

    def job() -> None:
        target, workload = VtaTarget(VtaSpec.load(PRESET), space), parse_workload(WORKLOAD)
        configs = np.zeros((1, len(target.space(workload).knobs)), np.int32)
        target.estimate(workload, configs)
        lowered = target.lower(workload, configs)
        target.measure(lowered)
        target.verify(lowered)
        target.enumerate(parse_workload("dense:n=1,c=16,o=16"))

    return job


def simulate_stream() -> None:
    """Time and execute an instruction stream."""
    spec = VtaSpec.load(PRESET)
    simulate_program(assemble(LISTING, spec), spec)
    simulate(Program(assemble(LISTING, spec), np.zeros(DRAM_BYTES, np.uint8)), spec)


def lint_stream() -> None:
    """Lint and disassemble an instruction stream."""
    spec = VtaSpec.load(PRESET)
    program = Program(assemble(LISTING, spec), np.zeros(DRAM_BYTES, np.uint8))
    lint(program, spec)
    disassemble(program.insns, spec)


GROUPS: tuple[tuple[Callable[[], object], ...], ...] = (
    (lower(WORKLOAD, "extended"), lower(SUMMED, "extended")),
    (simulate_stream, lint_stream),
    (lower(POOLED, "extended"), lower(POOL, "extended")),
    (lower(WORKLOAD, "template"), lower(WORKLOAD, "unchecked")),
)
"""Jobs, by the process that compiles them; the longest group is first."""


REMAINING = tuple(map(enumerate_schedules, get_args(SpaceName)))
"""Jobs that use the kernels of all groups, and compile a few small ones in addition."""


def warm_up(report: Callable[[str], None]) -> None:
    """Compile all kernels, with one process per core.

    If a process dies, its kernels are compiled by the first command that needs them.

    Args:
        report: called with a line of progress after each job.
    """
    numbers = itertools.count(1)
    total = sum(map(len, GROUPS)) + len(REMAINING)

    def count_job() -> None:
        report(f"compiling simulator kernels, {next(numbers)} of {total} (once per installation)")

    def run_groups(share: range) -> None:
        command = [sys.executable, "-P", "-m", __name__, *map(str, share)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in process.stdout:
                count_job()

    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths}
    processes = min(os.cpu_count() or 1, len(GROUPS))
    with ThreadPoolExecutor(processes) as pool:
        shares = (range(first, len(GROUPS), processes) for first in range(processes))
        list(pool.map(run_groups, shares))
    for job in REMAINING:
        job()
        count_job()


if __name__ == "__main__":
    for group in sys.argv[1:]:
        for job in GROUPS[int(group)]:
            job()
            print("done", flush=True)
