"""Measures schedule spaces of VTA and the speed of its simulators.

These are the benchmarks of docs/evidence/schedule-spaces.md.
"""
