"""What can be wrong with a dataset."""

from targets.errors import TilewrightError


class DatasetError(TilewrightError):
    """A dataset that cannot be built, read or judged as asked."""
