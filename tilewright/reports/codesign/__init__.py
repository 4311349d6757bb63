"""Draws the front of a co-design run as an interactive page."""
