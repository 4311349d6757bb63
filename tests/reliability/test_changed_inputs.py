"""Checks that a changed input recomputes exactly the stages that depend on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.cli.conftest import Place
from tests.reliability.commands import ROOT
from tilewright.services.prefect_server import Login

pytestmark = pytest.mark.slow(seconds=2.5)

WORKLOADS, ROUNDS = 2, 2
IMPORT = {"import_model": 1, "extract_subgraphs": 1}
STOCK, PROOF = {"measure_baseline": WORKLOADS}, {"verify_schedule": WORKLOADS}
COSTS = {"extract_subgraphs": 1}  # offloading depends on the target's speed
BEGUN = {"begin_models": WORKLOADS}  # models before the first trial
ASKED = ("generate_candidates", "filter_candidates", "lower_and_choose", "retrain_models")


def rounds(number: int, *, simulated: bool = True) -> dict[str, int]:
    names = (*ASKED, "measure_batch") if simulated else ASKED
    return dict.fromkeys(names, number * WORKLOADS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_server: Login) -> Any:
    place = Place(tmp_path_factory.mktemp("changed"), prefect_server)
    module = "tests.reliability.changed_inputs"
    done = warm.run([], place.folder, place.environment, 600, module=module)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


EXPECTED: list[tuple[str, Mapping[str, int], int]] = [
    ("first", IMPORT | BEGUN | STOCK | PROOF | rounds(ROUNDS), 0),
    ("again", {}, 32),
    ("elsewhere", {}, 0),  # other trials, the same cache
    ("spec written otherwise", {}, 32),
    ("more trials", rounds(1), 32),
    ("another seed", BEGUN | rounds(ROUNDS), 0),
    # the batches are the same, so they are not simulated again
    ("another option of the tuner", BEGUN | rounds(ROUNDS, simulated=False), 0),
    ("another model file", IMPORT, 32),
    ("another spec", COSTS | BEGUN | STOCK | PROOF | rounds(ROUNDS), 0),
    ("fresh", IMPORT | BEGUN | STOCK | PROOF | rounds(ROUNDS), 0),
]


@pytest.mark.parametrize(
    ("change", "computed", "reused"), EXPECTED, ids=[row[0].replace(" ", "-") for row in EXPECTED]
)
def test_a_change_computes_what_depends_on_it(
    runs: Any, change: str, computed: Mapping[str, int], reused: int
) -> None:
    result = dict(runs[change]["computed"])
    if change in ("more trials", "another seed"):  # only a better schedule is verified
        assert result.pop("verify_schedule", 0) <= WORKLOADS
    # the plots depend on the trials: one per workload and one of all
    assert result.pop("picture", 0) == (WORKLOADS + 1 if "measure_batch" in computed else 0)
    assert result == computed
    assert runs[change]["reused"] == reused


def test_an_edit_of_the_compiler_or_simulator_is_another_target(tmp_path: Path) -> None:
    """The target's fingerprint is part of every cache key that depends on the target."""
    package = tmp_path / "tilewright"
    shutil.copytree(ROOT / "tilewright", package, ignore=shutil.ignore_patterns("__pycache__"))
    copy = package / "targets"
    program = (
        "from tilewright.targets import make_target; print(make_target('vta-pynq').fingerprint)"
    )

    def fingerprint() -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path)},
        )  # fmt: skip
        return done.stdout.strip()

    seen = {fingerprint()}
    for name in (
        "spec.py",
        "instruction_format.py",
        "lowering/instruction_writer.py",
        "timing/__init__.py",
        "functional/__init__.py",
    ):
        with (copy / "vta" / name).open("a") as file:
            file.write("\n# edited\n")
        seen.add(fingerprint())
    assert len(seen) == 6
    with (copy / "vta" / "area.py").open("a") as file:
        file.write("\n# decides no measurement\n")
    assert fingerprint() in seen
