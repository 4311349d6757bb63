"""Provides the finished run of the command's tests, for those of its runs on a cluster."""

from tests.cli.conftest import tuned

__all__ = ["tuned"]
