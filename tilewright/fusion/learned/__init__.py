"""Learned fusion: a model of labelled networks' cycles, a policy that labels, and their search."""
