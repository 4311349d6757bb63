"""Helpers for all packages that belong to no domain: errors, JSON, files and processes."""
