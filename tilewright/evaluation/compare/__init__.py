"""Comparison of tuners: the plan, the runs and the results.

A comparison on workloads passes through these stages: select the workloads, create a test bed, plan
the runs, execute and store them, compute results, and rank the tuners in a leaderboard.
"""
