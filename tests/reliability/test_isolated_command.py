"""Checks that with `--isolate`, a crash, hang or lie of a simulator costs only single trials."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests import warm
from tests.cli.conftest import Place
from tests.reliability.commands import TRIALS, TUNE, WORKLOADS
from tests.reliability.faulty_vta import make_vta
from tests.trial_tables import frame
from tilewright.services.prefect_server import Login
from tilewright.targets import make_target
from tilewright.targets.workload import parse_workload

pytestmark = pytest.mark.nightly(seconds=15)

FAULTY = """
import sys
from tilewright.targets import subprocess_target
subprocess_target.NAMED = "tests.reliability.faulty_vta:make_vta"
from tilewright.cli import main
sys.argv[0] = "tilewright"
main()
"""
TYPED = {"crash": "run_error", "hang": "timeout", "nonsense": "wrong_result", "raise": "run_error"}


def test_a_simulator_that_misbehaves_does_not_end_the_command(
    tmp_path: Path, prefect_server: Login
) -> None:
    place = Place(tmp_path, prefect_server)
    done = warm.run(
        [*TUNE, "--tuner", "random", "--isolate", "2"], tmp_path, place.environment, 600,
        program=FAULTY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = frame(tmp_path / "out").to_dict("records")
    assert len(records) == WORKLOADS * TRIALS
    faulty, honest, met = make_vta("vta-pynq"), make_target("vta-pynq"), Counter[str]()
    schedules = {row["id"]: row for row in place.json("out/schedules.json")["schedules"]}
    for record in records:
        chosen = schedules[record["workload"]]
        workload = parse_workload(chosen["workload"], chosen["epilogue"])
        space = honest.space(workload)
        config = np.array([record["config"]], dtype=np.int32)
        fault = faulty.fault(int(space.ravel(config)[0]))
        truth = honest.measure(honest.lower(workload, config))
        compiled = truth.status[0] != "compile_error"
        if fault is not None and compiled:
            met[fault] += 1
            assert (fault, record["status"]) == (fault, TYPED[fault])
            assert record["config"] != chosen["config"]
        else:
            assert (record["status"], record["cycles"]) == (truth.status[0], truth.cycles[0])
    assert set(met) == set(TYPED), json.dumps(met)
