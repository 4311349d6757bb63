"""Comparison of tuners: the plan, the runs and the results.

The stages are: selection → test bed → plan → runs (in processes, stored on disk) → results →
leaderboard → verdict
"""
