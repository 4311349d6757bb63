"""Servers of Prefect and MLflow for a command, and the workspace that holds their records."""
