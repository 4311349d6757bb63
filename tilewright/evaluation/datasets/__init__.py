"""Datasets of measured programs: building, storing, reading, splitting, and model evaluation."""
