"""Runners that execute the steps of flows, with a cache, MLflow tracking and a model registry."""
