"""Explains a finished run from its output directory, by training its cost models again.

The modules run in this order: `finished_run` reads the run, `refitted_models` (`explain_run`)
trains and evaluates the models, `figures` computes the statistics, and `recommendations` derives
advice.
"""
