"""Evaluation of tuners and models. Functions take and return tables.

    compare.leaderboard                   compares tuners (`flows.comparison`)
    explain.refitted_models.explain_run   features that the models of a run used
    diff.diff_runs                        decides whether a run is worse than another one
    enumeration.enumerate_space           measures a whole search space

This package has no terminal output, web pages or servers: `reports` draws the results, and `cli`
prints them.
"""
