"""Learned fusion: a model of the cycles of labelled networks, a labelling policy, and a search."""
