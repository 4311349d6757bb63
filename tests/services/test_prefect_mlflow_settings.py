"""Checks that exported Prefect and MLflow settings are used, but not those of the folder.

`tests/reliability/test_hostile_folder.py` tests folders that were prepared by an attacker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.services.prefect_mlflow_settings import keep_loopback_direct

ROOT = Path(__file__).parents[2]
SHOW = """
import json, tilewright.services.workspace
from tilewright.core.working_folder import leave_working_folder
leave_working_folder()  # as commands do
tilewright.services.workspace.use_workspace()
import tilewright.targets, tilewright.reports, numba.core.config, matplotlib
from prefect.settings import get_current_settings
settings = get_current_settings()
print(json.dumps({
    "logging": str(settings.logging.config_path), "profiles": str(settings.profiles_path),
    "level": settings.logging.level, "retries": settings.client.max_retries,
    "triggers": settings.server.services.triggers.enabled,
    "font": matplotlib.rcParams["font.size"], "opt": int(numba.core.config.OPT),
}))
"""


def shown(folder: Path, **named: str) -> dict[str, object]:
    drop = ("PREFECT_", "MLFLOW_", "NUMBA_OPT", "MATPLOTLIBRC")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SHOW], cwd=folder, capture_output=True, text=True, check=True,
        env=kept | {"PYTHONPATH": str(ROOT), "TILEWRIGHT_HOME": str(folder / "home")} | named,
    )  # fmt: skip
    document: dict[str, object] = json.loads(done.stdout)
    return document


@pytest.mark.slow(seconds=4)
def test_variables_of_the_user_are_heeded_and_files_of_the_folder_are_not(tmp_path: Path) -> None:
    (tmp_path / "prefect.toml").write_text(
        '[logging]\nlevel = "ERROR"\n[client]\nmax_retries = 1\n'
    )
    (tmp_path / "pyproject.toml").write_text("[tool.prefect.client]\nmax_retries = 2\n")
    (tmp_path / ".env").write_text("PREFECT_LOGGING_LEVEL=CRITICAL\n")
    (tmp_path / ".numba_config.yaml").write_text("opt: 0\n")
    (tmp_path / "matplotlibrc").write_text("font.size: 3\n")
    usual = shown(tmp_path)
    assert Path(str(usual["logging"])).parts[-2:] == ("prefect", "logging.yml")
    assert Path(str(usual["profiles"])).parts[-2:] == ("settings", "profiles.toml")
    assert usual["level"] == "INFO"
    assert (usual["retries"], usual["triggers"], usual["font"], usual["opt"]) == (60, False, 10, 3)

    style = tmp_path / "mine" / "matplotlibrc"
    style.parent.mkdir()
    style.write_text("font.size: 20\n")
    package = Path(str(usual["profiles"])).parents[1]
    (tmp_path / "logging.yml").write_bytes((package / "logging" / "logging.yml").read_bytes())
    theirs = shown(
        tmp_path, PREFECT_LOGGING_CONFIG_PATH=str(tmp_path / "logging.yml"), NUMBA_OPT="2",
        PREFECT_LOGGING_LEVEL="WARNING", PREFECT_CLIENT_MAX_RETRIES="7",
        PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED="true", MATPLOTLIBRC=str(style.parent),
    )  # fmt: skip
    assert theirs == usual | {
        "logging": str(tmp_path / "logging.yml"), "level": "WARNING", "retries": 7,
        "triggers": True, "font": 20, "opt": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, "127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "example.org, localhost"}, "example.org,localhost,127.0.0.1,::1"),
        ({"no_proxy": "a.org", "NO_PROXY": "b.org"}, "a.org,127.0.0.1,localhost,::1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_what_the_user_asks_directly_is_kept(
    given: dict[str, str], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, given.get(name, ""))
    keep_loopback_direct()
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == kept
