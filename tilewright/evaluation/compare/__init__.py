"""Tuners against each other: who meets whom on what, the runs, and what they come to.

selection → test bed → plan → runs (in processes, kept on disk) → results → leaderboard → verdict
"""
