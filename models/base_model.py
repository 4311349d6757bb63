"""Base class of the models, which checks that a model gets the features it was fitted to."""

from __future__ import annotations

from tilewright.core.errors import TilewrightError
from tilewright.targets.features import Features


class WrongFeatures(TilewrightError):
    """The features given to a model differ from the features that it was fitted to."""


class FittedModel:
    """Base class of models that stores the feature names of the last fit and checks them.

    Attributes:
        columns: names of the features of the last fit.
        width: number of features of a model that was read from a file; None if it is unknown.
    """

    columns: tuple[str, ...] = ()
    width: int | None = None
    """Number of features of a model that was read from a file; None if it is unknown."""

    def remember(self, x: Features) -> None:
        """Store the feature names of the training data. Every `fit` calls this method.

        Args:
            x: features to which the model is being fitted.
        """
        self.columns, self.width = x.names, None

    def check(self, x: Features) -> None:
        """Check that features match those of the last fit. Every `predict` calls this method.

        Args:
            x: features for which predictions are requested.

        Raises:
            WrongFeatures: the names of the features, their number or their order differ.
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
