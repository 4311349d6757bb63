"""Draws a timed program: the cycles of each unit, as tables, a picture or a page."""
