"""Compiles the numba kernels of the lowering and the simulators before their first use.

A job runs a kernel on a small input, so that numba compiles it and caches its code on disk. Groups
of jobs run in several processes. The jobs of one group share helper functions, which a process
compiles only once.

`python -m tilewright.targets.vta.precompile 0 2` runs the first and the third group and prints one
line per job. Without arguments, it compiles the kernels that `warm_up` leaves out.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np

from tilewright.targets.vta.baseline import baseline_of
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
    """Create a job that lowers a single config of a workload."""

    def job() -> None:
        lowering = Lowering.for_workload(parse_workload(workload), VtaSpec.load(PRESET), space)
        first = np.zeros((1, len(lowering.space.knobs)), np.int32)
        lowering.counts(lowering.space.values(first))

    return job


def enumerate_schedules(space: SpaceName) -> Callable[[], object]:
    """Create a job that estimates, measures and verifies a config, and enumerates a small space.

    Args:
        space: name of the schedule space.
    """

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
    """Simulate the timing and the function of an instruction stream."""
    spec = VtaSpec.load(PRESET)
    simulate_program(assemble(LISTING, spec), spec)
    simulate(Program(assemble(LISTING, spec), np.zeros(DRAM_BYTES, np.uint8)), spec)


def choose_baseline() -> None:
    """Choose a baseline schedule, which uses the kernels of the closed-form estimates."""
    baseline_of(parse_workload(WORKLOAD), VtaSpec.load(PRESET))


def lint_stream() -> None:
    """Lint and disassemble an instruction stream."""
    spec = VtaSpec.load(PRESET)
    program = Program(assemble(LISTING, spec), np.zeros(DRAM_BYTES, np.uint8))
    lint(program, spec)
    disassemble(program.insns, spec)


USUAL: tuple[tuple[Callable[[], object], ...], ...] = (
    (lower(WORKLOAD, "extended"), lower(SUMMED, "extended"), lower(POOLED, "extended")),
    (simulate_stream, lower(WORKLOAD, "template")),
)
"""Jobs that compile the kernels which are needed to tune a network. The jobs are divided into
groups that different processes can run at the same time."""

USUAL_REMAINING = (enumerate_schedules("extended"), choose_baseline)
"""Jobs that are executed after `USUAL`. They use its kernels and compile a few more small
kernels."""

RARE: tuple[tuple[Callable[[], object], ...], ...] = (
    (lower(POOL, "extended"), lint_stream),
    (lower(WORKLOAD, "unchecked"),),
)
"""Jobs that compile all other kernels, in groups like `USUAL`. If these jobs are not run, the
kernels are compiled when a command needs them."""

RARE_REMAINING = tuple(map(enumerate_schedules, get_args(SpaceName)))

GROUPS = USUAL + RARE


def warm_up(report: Callable[[str], None]) -> None:
    """Compile the kernels that tuning a network uses.

    Args:
        report: called with a progress message after each job.
    """
    compile_groups(range(len(USUAL)), USUAL_REMAINING, report)


def compile_groups(
    groups: range, remaining: Sequence[Callable[[], object]], report: Callable[[str], None]
) -> None:
    """Compile the kernels of some groups of jobs, with one process per core.

    If a process dies, its kernels are compiled later, by the first command that needs them.

    Args:
        groups: indices into `GROUPS`.
        remaining: jobs to run afterwards in this process; they use the kernels of all these groups.
        report: called with a progress message after each job.
    """
    numbers = itertools.count(1)
    total = sum(len(GROUPS[group]) for group in groups) + len(remaining)

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
    processes = min(os.cpu_count() or 1, len(groups))
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run_groups, (groups[first::processes] for first in range(processes))))
    for job in remaining:
        job()
        count_job()


def main(groups: Sequence[str]) -> None:
    """Compile the kernels of some groups in this process, or all rarely used kernels.

    Args:
        groups: indices into `GROUPS`, as text; if empty, the kernels that `warm_up` leaves out are
            compiled.
    """
    if not groups:
        compile_groups(range(len(USUAL), len(GROUPS)), RARE_REMAINING, print)
    for group in groups:
        for job in GROUPS[int(group)]:
            job()
            print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
