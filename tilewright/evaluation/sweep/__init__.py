"""Compares whole tuning runs: which networks, targets, tuners and seeds, what each run came to, and
which tuner won where.

options → plan → runs (one after the other, kept on disk) → leaderboard
"""
