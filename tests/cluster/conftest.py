"""Makes the finished run of the command-line tests available to the cluster tests."""

from tests.cli.conftest import tuned

__all__ = ["tuned"]
