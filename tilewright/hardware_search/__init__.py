"""Hardware and schedules together: which accelerator serves some networks best, and how.

`problem` says what may be built for which networks, `evaluator` answers measurements and counts
them, `methods` search, `front` judges designs by what was measured, `run` does all of it into a
folder.
"""
