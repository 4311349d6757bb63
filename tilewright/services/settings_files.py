"""Prefect's settings come from the environment: what the user exported, and `services.workspace`.

Prefect 3 also reads `.env`, `prefect.toml` and `pyproject.toml` of the working folder and a file of
profiles; one of these settings is a configuration of `logging`, which calls whatever it names.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tilewright.core.imports import after_import, look_elsewhere

_FILES = {".env": os.devnull, "prefect.toml": os.devnull}


def prefect_reads_none() -> None:
    """Call before Prefect is imported."""
    look_elsewhere("prefect.settings.base", _FILES)
    look_elsewhere("prefect.settings.sources", {**_FILES, "pyproject.toml": os.devnull})
    after_import("prefect._internal.versioning", _ask_no_git)


def own_settings() -> dict[str, str]:
    """Where Prefect would look in its home: the files that come with it, by variable. Without the
    variables a user may have set instead."""
    package = _package("prefect")
    files = {
        ("PREFECT_PROFILES_PATH",): package / "settings" / "profiles.toml",
        ("PREFECT_LOGGING_SETTINGS_PATH", "PREFECT_LOGGING_CONFIG_PATH"): package
        / "logging"
        / "logging.yml",
    }
    return {
        names[0]: str(file)
        for names, file in files.items()
        if not any(os.environ.get(name) for name in names)
    }


def _ask_no_git(versioning: ModuleType) -> None:
    """A deployment says the version of its flow, not the commit and the remote (with whatever login
    that has) of a repository the command happens to run in, whose settings git would read."""

    async def no_repository(version_type: str | None = None) -> None:
        return None

    versioning.get_inferred_version_info = no_repository  # type: ignore[attr-defined]


def _package(name: str) -> Path:
    """The folder of a package, which is not imported for it."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
