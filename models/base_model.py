"""Records the features that a model was fitted on."""

from __future__ import annotations

from tilewright.core.errors import TilewrightError
from tilewright.targets.features import Features


class WrongFeatures(TilewrightError):
    """A model was asked about other features than it was fitted on."""


class FittedModel:
    """Remembers the names of the columns a model was fitted on, and refuses others."""

    columns: tuple[str, ...] = ()

    def remember(self, x: Features) -> None:
        """To be called by `fit`."""
        self.columns = x.names

    def check(self, x: Features) -> None:
        """To be called by `predict`. Raises `WrongFeatures`."""
        if self.columns and x.names != self.columns:
            lacks = [name for name in self.columns if name not in x.names]
            foreign = [name for name in x.names if name not in self.columns]
            told = [
                f"{verb} {', '.join(names[:3])}{' …' * (len(names) > 3)}"
                for verb, names in (("lack", lacks), ("have also", foreign))
                if names
            ] or ["have another order"]
            raise WrongFeatures(
                f"a model learned from {len(self.columns)} features; those it is asked about "
                f"{' and '.join(told)}: train it again"
            )
