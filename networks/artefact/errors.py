"""What can be wrong with an artefact."""

from __future__ import annotations

from targets.errors import TilewrightError


class ArtefactError(TilewrightError):
    """A folder that is no artefact, is damaged or of another version, or cannot be made."""
