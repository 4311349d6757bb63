"""Searches hardware and schedules together: which accelerator serves some networks best, and how.

`problem` says what may be built for which networks, `evaluator` answers and counts measurements,
`methods` search. `pareto` judges designs by what was measured, `steps` do all of it into a folder.
"""
