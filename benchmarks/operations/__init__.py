"""Benchmarks that measure the cost of Prefect and MLflow, for docs/evidence/operations.md."""
