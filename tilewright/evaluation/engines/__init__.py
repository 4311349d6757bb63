"""Benchmarks of networks with several inference engines in alternation."""
