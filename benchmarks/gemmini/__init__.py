"""Judges Gemmini's simulators and tunes for it: benchmarks of docs/evidence/gemmini.md."""
