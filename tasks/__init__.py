"""Runners that execute the steps of flows as Prefect tasks and record them in MLflow."""
