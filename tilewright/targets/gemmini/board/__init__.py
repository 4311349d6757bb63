"""Builds networks for Gemmini: one memory image, one command stream a segment."""
