"""Co-design: searches accelerators and schedules together, for the networks that they serve.

`problem` says what may be built for which networks, `evaluator` answers and counts measurements,
`methods` search. `pareto` judges designs by what was measured, `steps` do all of it into a folder.
"""
