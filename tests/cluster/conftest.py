"""Provides fixtures of the command's tests, for those of its runs on a cluster."""

from tests.cli.conftest import place, tuned

__all__ = ["place", "tuned"]
