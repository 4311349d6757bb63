"""Measures how many trials tuners need: benchmarks of docs/evidence/tuners.md."""
