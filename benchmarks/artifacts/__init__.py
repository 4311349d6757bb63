"""Checks and times built networks: benchmarks of docs/evidence/artifacts.md."""
