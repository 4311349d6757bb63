"""Benchmarks that count which networks, models and operators are built correctly.

Their results are on the page docs/evidence/coverage.md.
"""
