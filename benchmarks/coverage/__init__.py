"""Counts which networks, models and operators are built correctly.

These are the benchmarks of docs/evidence/coverage.md.
"""
