"""Benchmarks that measure how many trials tuners need, for docs/evidence/tuners.md."""
