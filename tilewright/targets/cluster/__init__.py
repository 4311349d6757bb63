"""Targets whose batches the workers of a Dask cluster lower and measure.

`connection` reaches the cluster, `target` stands in for a target on the side of the command, `work`
is what its workers run. Only `connection` loads Dask, and only when it connects.
"""
