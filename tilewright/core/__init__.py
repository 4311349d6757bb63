"""Provides what every room needs and no domain owns: errors, JSON, files, child processes."""
