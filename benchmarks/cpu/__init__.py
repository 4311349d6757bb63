"""Times networks and layers on this processor.

These are the benchmarks of docs/evidence/cpu.md and cpu-estimates.md.
"""
