"""Defines what can be wrong with a dataset."""

from tilewright.core.errors import TilewrightError


class DatasetError(TilewrightError):
    """A dataset that cannot be built, read or judged as asked."""
