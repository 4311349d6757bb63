"""Compares tuners with each other: their pairings, the runs, and the results.

selection → test bed → plan → runs (in processes, kept on disk) → results → leaderboard → verdict
"""
