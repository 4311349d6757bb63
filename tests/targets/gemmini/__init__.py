"""Checks Gemmini's two simulators against recordings of its RTL."""
