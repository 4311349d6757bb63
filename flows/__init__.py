"""Pipelines of steps for each command: tuning, builds, comparisons, co-design, datasets, training.

Modules whose names end in `_prefect` define the Prefect flow of a pipeline. `serve`, `deploy_all`
and `worker` deploy the flows.
"""
