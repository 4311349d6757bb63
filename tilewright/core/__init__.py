"""Helpers that every room needs and no domain owns: errors, JSON, files, processes."""
