"""Counts which networks, models and operators are built and right: benchmarks of
docs/evidence/coverage.md."""
