"""Lowers and measures batches of a target by the workers of a Dask cluster.

`connection` reaches the cluster, `target` stands in for a target on the side of the command,
`remote_worker` is what its workers run. Only `connection` loads Dask, and only when it connects.
"""
