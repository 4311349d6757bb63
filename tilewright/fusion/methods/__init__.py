"""Searches for labels, a file each behind `fusion.registry.FusionMethod`."""
