"""Compiles exported C with a macro that logs each command, and compares the log with the stream."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.tune_bare import tune_bare
from tilewright.cli.app import app
from tilewright.core.errors import WorkloadError
from tilewright.targets import make_target
from tilewright.targets.capabilities import ExportsSchedules, NamedSchedule, capability
from tilewright.targets.gemmini.target import GemminiTarget
from tilewright.targets.workload import parse_workload

LOGGING = """\
#include <inttypes.h>
#include <stdio.h>
#define GEMMINI_COMMAND(funct, rs1, rs2) printf("%d %" PRIu64 " %" PRIu64 "\\n", funct, rs1, rs2)
#define GEMMINI_FENCE() puts("127 0 0")
#include "layers.c"
"""
LAYERS = {
    "dense:n=100,c=72,o=40": "bias, >> even 8, min 127, max 0",
    "conv2d:n=1,c=20,h=9,w=9,o=24,k=3,s=2,p=1": "residual 7, >> even 9, min 127, max -128",
}


def _target() -> GemminiTarget:
    target = make_target("gemmini")
    assert isinstance(target, GemminiTarget)
    return target


def _log(source: str, calls: str, folder: Path) -> np.ndarray:
    """Return the commands (n, 3) that the functions of a C file issue when they are called."""
    (folder / "layers.c").write_text(source)
    (folder / "main.c").write_text(f"{LOGGING}\nint main(void) {{ {calls} return 0; }}\n")
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-o", "main", "main.c"]
    subprocess.run(["cc", *options], cwd=folder, check=True)
    said = subprocess.run([folder / "main"], check=True, capture_output=True, text=True).stdout
    return np.array([line.split() for line in said.splitlines()], np.uint64)


@pytest.mark.slow(seconds=0.4)
@pytest.mark.parametrize("text", LAYERS)
@pytest.mark.parametrize("seed", range(4))
def test_compiled_c_issues_the_stream(text: str, seed: int, tmp_path: Path) -> None:
    target, workload = _target(), parse_workload(text, LAYERS[text])
    space = target.space(workload)
    flat = np.random.default_rng(seed).integers(0, space.size, 1)
    lowered = target.lower(workload, space.unravel(flat))
    knobs = space.describe(lowered.configs[0])
    schedule = NamedSchedule("a layer/1", workload, space.name, knobs, 1e-3)
    places = target.lowering(workload).geometry.addresses
    roles = ("data", "weight", "bias", "residual", "identity", "output")
    pointers = [f"(void *){places[role]:#x}ull" for role in roles if role in places]
    log = _log(
        target.export_schedules([schedule], 0.0).text,
        f"a_layer_1({', '.join(pointers)});",
        tmp_path,
    )
    assert np.array_equal(log[:-1], lowered.programs["commands"][0])
    assert log[-1].tolist() == [127, 0, 0]


def test_a_run_is_exported_by_a_command(tmp_path: Path) -> None:
    tune_bare(
        target="gemmini",
        workload="dense:n=32,c=32,o=32",
        trials=8,
        batch=8,
        out=str(tmp_path / "run"),
    )
    out = tmp_path / "layers.c"
    done = CliRunner().invoke(
        app, ["export", str(tmp_path / "run"), "--format", "gemmini-c", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert "1 C function of raw commands" in done.output
    assert "_words[] = {" in out.read_text()


def test_schedules_of_other_spaces_and_targets_are_refused() -> None:
    exports = capability(make_target("vta-pynq"), ExportsSchedules)
    assert exports is not None
    assert exports.export_format == "autotvm"
    schedule = NamedSchedule("x", parse_workload("dense:n=1,c=16,o=16"), "template", {}, 1e-3)
    with pytest.raises(WorkloadError, match="not a schedule of the space"):
        _target().export_schedules([schedule], 0.0)
