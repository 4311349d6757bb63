"""Defines what can be wrong with an artifact."""

from tilewright.core.errors import TilewrightError


class ArtifactError(TilewrightError):
    """A folder that is no artifact, is damaged or of another version, or cannot be made."""


class InaccurateError(ArtifactError):
    """Outputs are further from the source model's than the tolerance allows."""
