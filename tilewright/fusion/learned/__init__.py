"""Learned fusion: a model of the cycles of fused networks, a policy, and a search."""
