"""Lowers and measures batches of a target on the workers of a Dask cluster.

- `connection` submits function calls to a cluster and translates Dask's errors.
- `keys` writes the certificates of a cluster.
- `remote_worker` contains the functions that workers execute.
- `target` provides a target whose batches are sent to workers.

Submitted functions are module-level functions of this package, and their arguments are JSON and
plain arrays, so that messages stay readable. Dask itself serialises calls with pickle. This is safe
because both sides of a connection authenticate each other with certificates.
"""

from __future__ import annotations

from tilewright.core.errors import TilewrightError


class ClusterError(TilewrightError):
    """Raised if a cluster cannot be used.

    Possible reasons are that the cluster cannot be reached, that it has no workers, or that its
    workers run a different version of Tilewright than the command.
    """
