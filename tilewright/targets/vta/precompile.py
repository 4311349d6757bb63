"""Runs every compiled kernel on something small: numba keeps what it compiled on disk.

Compiling takes minutes where nothing is kept, so a second process compiles the longest of what
makes streams, and what runs them: `python -m tilewright.targets.vta.precompile`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import get_args

import numpy as np

from tilewright.targets.vta.disassembler import assemble, disassemble
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.lint import lint
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.lowering.fused_shortcut import lower_summed
from tilewright.targets.vta.lowering.program_state import new_state
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


def warm_up() -> None:
    """Compile all of it, on two cores where there are two; each half takes about as long."""
    command = [sys.executable, "-P", "-m", __name__]
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}) as beside:
        estimate_schedules()
        beside.wait()
    lower_shortcut()  # what the other process compiled; what it could not, if it died
    run_streams()
    time_schedules()
    check_schedules()


def estimate_schedules() -> None:
    """Lower one small layer in every space and estimate its cycles."""
    spec, workload = VtaSpec.load(PRESET), parse_workload(WORKLOAD)
    for name in get_args(SpaceName):
        target = VtaTarget(spec, name)
        configs = np.zeros((1, len(target.space(workload).knobs)), np.int32)
        target.lower(workload, configs)
        target.estimate(workload, configs)


def lower_shortcut() -> None:
    """Lower a layer with a shortcut, of which the writer takes a quarter of all the compiling."""
    spec, summed = VtaSpec.load(PRESET), parse_workload(SUMMED)
    lowering = Lowering.of(summed, spec, "extended")
    values = lowering.space.values(np.zeros((1, len(lowering.space.knobs)), np.int32))[0]
    out, uops = np.zeros((4096, 2), np.uint64), np.zeros(1 << spec.machine.log_uop_depth, np.uint64)
    lower_summed(*lowering.records, lowering.epilogue, values, out, uops, new_state())


def time_schedules() -> None:
    """Time schedules of layers and pools, single ones and whole spaces."""
    spec, workload = VtaSpec.load(PRESET), parse_workload(WORKLOAD)
    target = VtaTarget(spec, "template")
    target.baseline(workload)
    target.baseline(parse_workload(POOLED))
    target.baseline(parse_workload(SUMMED))
    target.bound(parse_workload(POOL))
    target.baseline(parse_workload(POOL))
    target.enumerate(parse_workload("dense:n=1,c=16,o=16"))


def run_streams() -> None:
    """Time, run, lint and list an instruction stream."""
    spec = VtaSpec.load(PRESET)
    simulate_program(assemble(LISTING, spec), spec)
    program = Program(assemble(LISTING, spec), np.zeros(DRAM_BYTES, np.uint8))
    simulate(program, spec)
    lint(program, spec)
    disassemble(program.insns, spec)


def check_schedules() -> None:
    """Verify a schedule, and measure where measuring checks numbers."""
    spec, workload = VtaSpec.load(PRESET), parse_workload(WORKLOAD)
    for name in get_args(SpaceName):
        target = VtaTarget(spec, name)
        configs = np.zeros((1, len(target.space(workload).knobs)), np.int32)
        lowered = target.lower(workload, configs)
        target.measure(lowered)
        target.verify(lowered)
        target.enumerate(parse_workload("dense:n=1,c=16,o=16"))


if __name__ == "__main__":
    lower_shortcut()
    run_streams()
