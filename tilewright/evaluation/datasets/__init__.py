"""Builds, stores, reads, prunes and splits datasets of measured programs, and judges models on
them.
"""
