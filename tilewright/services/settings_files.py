"""Takes Prefect's settings from the user: variables that are exported, and the profile in use.

Prefect would look for its profiles, and for a configuration of `logging`, in its home. That is the
workspace here, which may have come with a folder from a stranger. So the files are named: the
profiles of the user's own Prefect home, or those that come with Prefect.
"""

from __future__ import annotations

import os
import tomllib
from importlib.util import find_spec
from pathlib import Path

PROFILES = "PREFECT_PROFILES_PATH"
LOGGING = ("PREFECT_LOGGING_SETTINGS_PATH", "PREFECT_LOGGING_CONFIG_PATH")

_SERVER = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_UI_URL")


def own_settings() -> dict[str, str]:
    """The files of Prefect's settings, by variable. Without variables that the user has set."""
    found = {}
    if not os.environ.get(PROFILES):
        found[PROFILES] = str(_profiles())
    if not any(map(os.environ.get, LOGGING)):
        found[LOGGING[0]] = str(_package("prefect") / "logging" / "logging.yml")
    return found


def profile_settings() -> dict[str, str]:
    """The server that the user's profile in use names, and what opens it, by variable. Prefect
    reads the rest of the profile itself. Empty if the profile names none, or `PREFECT_API_URL`
    does."""
    if os.environ.get(_SERVER[0]):
        return {}
    try:
        known = tomllib.loads(Path(os.environ.get(PROFILES) or _profiles()).read_text())
        named = os.environ.get("PREFECT_PROFILE") or known["active"]
        values = known["profiles"][named]
        return {
            name: str(values[name]) for name in _SERVER if _SERVER[0] in values and name in values
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # Prefect, which reads the same file, says what is wrong with it


def _profiles() -> Path:
    """The user's file, where there is one. `PREFECT_HOME` is the user's or, once it is set here,
    the workspace's; then the variable above is set as well."""
    home = os.environ.get("PREFECT_HOME")
    own = (Path(home) if home else Path.home() / ".prefect") / "profiles.toml"
    usable = own.is_file() and own.stat().st_uid == os.getuid()  # another user's is not ours
    return own if usable else _package("prefect") / "settings" / "profiles.toml"


def _package(name: str) -> Path:
    """The folder of a package, which is not imported for it."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
