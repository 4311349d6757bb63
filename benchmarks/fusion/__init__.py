"""Measures what fusion saves and how well its search works: benchmarks of
docs/evidence/fusion.md."""
