"""Checks that forked commands (`tests/warm.py`) see the libraries as a new Python does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.cli.conftest import Place

ROOT = Path(__file__).parents[1]
PROGRAM = "tests.warm_program"


@pytest.mark.nightly(seconds=8)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"PREFECT_LOGGING_LEVEL": "DEBUG", "PREFECT_API_URL": "http://127.0.0.1:9/api",
         "PREFECT_CLIENT_MAX_RETRIES": "3", "MLFLOW_LOGGING_LEVEL": "ERROR",
         "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
        {"MLFLOW_CONFIGURE_LOGGING": "false"},
    ],
    ids=["home", "settings", "silent"],
)  # fmt: skip
def test_prefect_and_mlflow_are_found_as_an_import_leaves_them(
    tmp_path: Path, more: dict[str, str]
) -> None:
    place = Place(tmp_path)
    environment = place.environment | more | {"PYTHONPATH": str(ROOT)}
    alone = subprocess.run(
        [sys.executable, "-P", "-m", PROGRAM], cwd=place.folder, env=environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    forked = warm.run([], place.folder, environment, 60, module=PROGRAM)
    assert forked.returncode == 0, forked.stderr
    document, imported = json.loads(forked.stdout), json.loads(alone.stdout)
    # the fork has more modules, which add loggers and filters
    assert set(imported.pop("warnings")) <= set(document.pop("warnings"))
    theirs, ours = imported.pop("loggers"), document.pop("loggers")
    for name, (filters, *others) in theirs.items():
        assert ours[name][1:] == others, name
        assert set(filters) <= set(ours[name][0]), name
    assert document == imported
    assert document["before"] == []
    assert document["tracking"] == more.get("MLFLOW_TRACKING_URI", document["tracking"])


@pytest.mark.slow(seconds=1)
def test_a_fork_has_the_libraries_and_hides_two(tmp_path: Path) -> None:
    """Without this, all tests would still pass but take longer."""
    program = (
        "import sys\n"
        "print('tests.preloaded' in sys.modules, 'tvm' in sys.modules, 'prefect' in sys.modules)\n"
        "print([type(each).__name__ for each in sys.meta_path].count('Kept'))"
    )
    done = warm.run([], tmp_path, Place(tmp_path).environment, 60, program=program)
    assert done.stdout.split() == ["True", "True", "False", "2"], done.stderr
