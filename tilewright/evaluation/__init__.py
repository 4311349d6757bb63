"""Judges tuners and models: tables in, tables out.

    compare.leaderboard                   which tuner is better (`flows.comparison`)
    explain.refitted_models.explain_run   which features a run's models used
    diff.diff_runs                        whether a run is no worse than another one
    enumeration.enumerate_space           a whole space

Knows nothing of a terminal, a page, or a server; `reports` draws and `cli` shows what this finds.
"""
