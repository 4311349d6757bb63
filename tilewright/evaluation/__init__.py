"""Judges tuners and models: tables in, tables out.

    compare.comparison                    tuners against the optimum (`flows.comparison`)
    explain.run.explain_run               which features a run's models used
    enumeration.enumerate_space           a whole space

Knows nothing of a terminal, a page, or a server; `reports` draws and `cli` shows what this finds.
"""
