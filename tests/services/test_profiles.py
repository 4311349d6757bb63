"""Checks that the server of the user's active Prefect profile is used unless one is exported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import json
from tilewright.services.prefect_mlflow_settings import own_settings, profile_settings
print(json.dumps([profile_settings(), own_settings()["PREFECT_PROFILES_PATH"]]))
"""
PROFILES = """
active = "team"
[profiles.team]
PREFECT_API_URL = "http://prefect.example/api"
PREFECT_API_KEY = "secret"
PREFECT_LOGGING_LEVEL = "DEBUG"
[profiles.other]
PREFECT_LOGGING_LEVEL = "INFO"
"""
TEAM = {"PREFECT_API_URL": "http://prefect.example/api", "PREFECT_API_KEY": "secret"}


def shown(home: Path, **variables: str) -> list[object]:
    """Return the profile settings that a new process finds in a home folder."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env=kept | {"HOME": str(home)} | variables,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    document: list[object] = json.loads(done.stdout)
    return document


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    path = tmp_path / ".prefect" / "profiles.toml"
    path.parent.mkdir()
    path.write_text(PROFILES)
    return path


def test_the_profile_in_use_names_the_server(profiles: Path, tmp_path: Path) -> None:
    assert shown(tmp_path) == [TEAM, str(profiles)]


@pytest.mark.parametrize(
    "variables",
    [{"PREFECT_PROFILE": "other"}, {"PREFECT_API_URL": "http://elsewhere.example/api"}],
    ids=["another profile", "an exported address"],
)
def test_what_is_exported_comes_first(
    variables: dict[str, str], profiles: Path, tmp_path: Path
) -> None:
    assert shown(tmp_path, **variables) == [{}, str(profiles)]
