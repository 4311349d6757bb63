"""Compares two finished runs: whether the second is no worse than the first."""
