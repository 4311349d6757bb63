"""Base class of the models: it remembers which features a model was fitted on."""

from __future__ import annotations

from tilewright.core.errors import TilewrightError
from tilewright.targets.features import Features


class WrongFeatures(TilewrightError):
    """A model was asked to predict from different features than it was fitted on."""


class FittedModel:
    """Base class that stores the columns that a model was fitted on, and rejects other columns.

    Attributes:
        columns: names of the features of the last fit.
        width: number of features of a model that was read from a file; None if unknown.
    """

    columns: tuple[str, ...] = ()
    width: int | None = None
    """Number of features of a model that was read from a file, or None if it is unknown."""

    def remember(self, x: Features) -> None:
        """Store the columns of `x` as those that the model is fitted on.

        Every `fit` calls this method.
        """
        self.columns, self.width = x.names, None

    def check(self, x: Features) -> None:
        """Check that `x` has the columns that the model was fitted on. Every `predict` calls this.

        Raises:
            WrongFeatures: the columns, their number or their order differ.
        """
        if self.width is not None and len(x.names) != self.width:
            raise WrongFeatures(
                f"the model was trained on {self.width} features, but {len(x.names)} were "
                "given; train it again"
            )
        if self.columns and x.names != self.columns:
            lacks = [name for name in self.columns if name not in x.names]
            foreign = [name for name in x.names if name not in self.columns]
            told = [
                f"{verb} {', '.join(names[:3])}{' …' * (len(names) > 3)}"
                for verb, names in (("lack", lacks), ("have also", foreign))
                if names
            ] or ["have a different order"]
            raise WrongFeatures(
                f"the model was trained on {len(self.columns)} features, but the given ones "
                f"{' and '.join(told)}; train it again"
            )
