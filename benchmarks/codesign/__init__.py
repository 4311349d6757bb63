"""Benchmarks that compare co-design searches, and solve small co-design problems exactly.

Their results are on the pages docs/evidence/codesign*.md.
"""
