"""Measures what fusion saves and how well its search works.

These are the benchmarks of docs/evidence/fusion.md.
"""
