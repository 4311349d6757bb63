"""Benchmarks of Gemmini's simulators and of tuning for Gemmini, for docs/evidence/gemmini.md."""
