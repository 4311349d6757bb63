"""Compares searches over hardware and schedules, and solves small problems exactly.

These are the benchmarks of the pages docs/evidence/codesign*.md.
"""
