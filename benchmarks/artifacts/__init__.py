"""Benchmarks that check and time built networks, for docs/evidence/artifacts.md."""
