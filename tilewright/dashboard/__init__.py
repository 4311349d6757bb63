"""Shows the runs of a workspace on a page: `tilewright ui` opens it.

`listing` finds the runs, `run_trials` reads what one has tried, `answers` makes of them what the
page asks for, `server` serves both. Everything is read anew while a run goes on.
"""
