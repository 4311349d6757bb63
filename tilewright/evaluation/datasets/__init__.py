"""Datasets of measured schedules: building, storing and reading them, and training on them."""
