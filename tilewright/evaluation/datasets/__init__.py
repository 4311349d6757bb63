"""Datasets of programs on hardware: made, kept, read, pruned, split, and what judges a model."""
