"""Searches for labels, a file each behind `fusion.method.Method`."""
