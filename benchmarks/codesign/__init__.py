"""Compares searches over hardware and schedules, and solves small problems exactly: benchmarks of
the pages docs/evidence/codesign*.md."""
