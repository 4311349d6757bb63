"""Co-design: searches for an accelerator and for schedules on it together, for given networks.

The modules have these tasks:

- `problem` defines the machines to choose from and the layers of the networks.
- `evaluator` measures schedules and counts measurements against a budget.
- `methods` contains the search methods.
- `pareto` computes the Pareto front of machines from the measurements.
- `steps` runs a search and writes the output directory.
"""
