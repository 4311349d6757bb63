"""Judging tuners and models: tables in, tables out.

    from tilewright.evaluation.compare.comparison import run_comparison   # tuners against the
    optimum from tilewright.evaluation.explain.run import explain_run             # what a run's
    models went by from tilewright.evaluation.enumeration import enumerate_space         # a whole
    space

Knows nothing of a terminal, a page, or a server; `reports` draws and `cli` shows what this finds.
"""
