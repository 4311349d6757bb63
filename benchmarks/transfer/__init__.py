"""Benchmarks of cost models that transfer between hardware, for docs/evidence/transfer.md."""
