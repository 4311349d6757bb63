"""Benchmarks that measure what fusion saves, and how well its search works.

Their results are on the page docs/evidence/fusion.md.
"""
