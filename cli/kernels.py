"""What set-up does once so that first commands are quick: compile kernels, prepare a database."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from models import make_explorer
from search import tune
from services.home import Home, use_home
from services.prefect_server import prepare_database_template
from targets import make_target
from targets.vta.lint import lint
from targets.vta.listing import assemble, disassemble
from targets.vta.lowering.tensors import random_tensors
from targets.vta.timing import simulate_program
from targets.vta.verify import program_with_data
from targets.workload import parse_workload
from tuning.options import SPACES, space_name

TARGET = "vta-pynq"
WORKLOAD = "conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1"


def warm_up() -> None:
    """Run every compiled kernel on something small: Numba keeps what it compiled on disk."""
    workload = parse_workload(WORKLOAD)
    for space in SPACES:
        target = make_target(TARGET, space_name(space))
        for tuner in ("default", "autotvm") if space != "unchecked" else ("random",):
            for _ in tune(target, workload, make_explorer(tuner), trials=80, batch=16):
                pass
        _, baseline = target.baseline(workload)
        target.enumerate(parse_workload("dense:n=1,c=16,o=16"))
        target.verify(workload, np.zeros((1, len(target.space(workload).knobs)), np.int32))
    tensors = random_tensors(workload, target.spec.machine, 0)
    program = program_with_data(baseline.lowering, baseline.values, tensors)
    assert program is not None
    simulate_program(program.insns, target.spec)
    lint(program, target.spec)
    assemble(disassemble(program.insns, target.spec), target.spec)
    with tempfile.TemporaryDirectory() as folder:
        prepare_database_template(use_home(Home(Path(folder))))
