"""Runs every compiled kernel on something small: numba keeps what it compiled on disk."""

from __future__ import annotations

from typing import get_args

import numpy as np

from targets.vta.lint import lint
from targets.vta.listing import assemble, disassemble
from targets.vta.lowering.batch import SpaceName
from targets.vta.lowering.tensors import random_tensors
from targets.vta.spec import VtaSpec
from targets.vta.target import VtaTarget
from targets.vta.timing import simulate_program
from targets.vta.verify import program_with_data
from targets.workload import parse_workload

PRESET = "vta-pynq"
WORKLOAD = "conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1"


def warm_up() -> None:
    """Lower, time, verify, lint, list and assemble one small layer in every space."""
    spec, workload = VtaSpec.load(PRESET), parse_workload(WORKLOAD)
    for name in get_args(SpaceName):
        target = VtaTarget(spec, name)
        configs = np.zeros((1, len(target.space(workload).knobs)), np.int32)
        lowered = target.lower(workload, configs)
        target.measure(lowered)
        target.verify(lowered)
        target.estimate(workload, configs)
        target.enumerate(parse_workload("dense:n=1,c=16,o=16"))
    template = VtaTarget(spec, "template")
    lowering = template.lowering(workload)
    values = lowering.space.values(template.baseline(workload).lowered.configs)[0]
    tensors = random_tensors(workload, spec.machine, 0)
    program = program_with_data(lowering, values, tensors)
    assert program is not None
    simulate_program(program.insns, spec)
    lint(program, spec)
    assemble(disassemble(program.insns, spec), spec)
