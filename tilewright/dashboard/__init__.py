"""Web page with the runs of a workspace. `tilewright ui` opens it.

`listing` finds the runs, `run_trials` reads the trials of a run, `answers` computes the data for
the page, and `server` serves both. Data is read again while a run continues.
"""
