"""Tuners against each other: who meets whom on what, the runs, and what they come to.

contest, arena → runs (kept in kept_runs) → standings → report, plots, records in MLflow, champion
"""
