"""Takes Prefect's settings from the user: variables that are exported, and the profile in use.

Prefect would look for its profiles in its home, which is the workspace here. So the file is named:
the profiles of the user's own Prefect home, or those that come with Prefect.
"""

from __future__ import annotations

import os
import tomllib
from importlib.util import find_spec
from pathlib import Path

PROFILES = "PREFECT_PROFILES_PATH"

_SERVER = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_UI_URL")


def own_settings() -> dict[str, str]:
    """The file of Prefect's profiles, by variable; nothing if the user has set that variable."""
    return {} if os.environ.get(PROFILES) else {PROFILES: str(_profiles())}


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
    if own.is_file():
        return own
    spec = find_spec("prefect")  # which is not imported for it
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "settings" / "profiles.toml"
