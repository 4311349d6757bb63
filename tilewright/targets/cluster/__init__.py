"""Lowers and measures batches of a target on the workers of a Dask cluster.

`connection` submits functions to a cluster and translates Dask's errors, `keys` writes the
certificates of a cluster. `remote_worker` holds the function that workers execute. `target` stands
in for a target whose batches go to workers.

Functions are module-level functions of this package, and their arguments are JSON and plain arrays,
so that messages stay readable. Dask itself serialises calls with pickle, between peers that have
authenticated each other with certificates.
"""

from __future__ import annotations

from tilewright.core.errors import TilewrightError


class ClusterError(TilewrightError):
    """A cluster that cannot be used: it cannot be reached, has no workers, or its workers run
    something else than the command."""
