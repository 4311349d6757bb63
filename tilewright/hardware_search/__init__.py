"""Co-design: searches for accelerators and schedules together, for given networks.

`problem` defines the possible machines and the layers of the networks, `evaluator` measures and
counts measurements, and `methods` contains the search methods. `pareto` ranks designs by their
measurements, and `steps` runs everything and writes the output directory.
"""
