"""Judging tuners and models: tables in, tables out.

    from evaluation.compare.comparison import run_comparison   # tuners against the optimum
    from evaluation.explain.run import explain_run             # what a run's models went by
    from evaluation.enumeration import enumerate_space         # a whole space

Knows nothing of a terminal, a page, or a server; `reports` draws and `cli` shows what this finds.
"""
