"""Measures what models of other hardware know and save: benchmarks of docs/evidence/transfer.md."""
