"""Pipelines: tuning, builds, comparisons, co-design, data sets and their deployments."""
