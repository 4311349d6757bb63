"""Times networks and layers on this processor: benchmarks of docs/evidence/cpu.md and
cpu-estimates.md."""
