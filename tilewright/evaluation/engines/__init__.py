"""Benchmarks that run one network with several inference engines in turns."""
