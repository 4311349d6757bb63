"""Benchmarks that time networks and layers on the CPU of this machine.

Their results are on the pages docs/evidence/cpu.md and docs/evidence/cpu-estimates.md.
"""
