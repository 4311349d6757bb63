"""Starts Prefect and MLflow for a command, and keeps their records in the workspace."""
