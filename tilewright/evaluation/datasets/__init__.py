"""Datasets of measured programs: building, storing, reading and splitting them, and evaluating
models."""
