"""Evaluation of tuners and cost models.

The entry points are these functions. They take and return plain data, such as tables:

    compare.leaderboard                   compares tuners (called by `flows.comparison`)
    explain.refitted_models.explain_run   computes which features influence a run's cost models
    diff.diff_runs                        decides whether a run is worse than an earlier run
    enumeration.enumerate_space           measures every config of a search space

This package contains no terminal output, web pages or servers. `reports` draws the results, and
`cli` prints them.
"""
