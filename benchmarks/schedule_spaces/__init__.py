"""Benchmarks of VTA's schedule spaces and of the speed of its simulators.

Their results are on the page docs/evidence/schedule-spaces.md.
"""
