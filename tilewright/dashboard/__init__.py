"""The start page of `tilewright ui`: a web page with the runs of a workspace.

`listing` finds the runs, `answers` computes the data for the page, and `server` serves both. While
a run continues, its data are read again.
"""
