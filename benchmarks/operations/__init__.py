"""Measures what Prefect and MLflow cost: benchmarks of docs/evidence/operations.md."""
