"""Finds the fastest tile schedules of a neural network with few measurements."""
