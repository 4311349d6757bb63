"""Lowers and measures batches of a target on other machines.

`keys` says who gets in, `channel` what travels, `serve` is the side of a worker, `connection` that
of a command. `target` stands in for a target there, `remote_worker` answers for it here. What
travels is plain data: a call's name, JSON and arrays of numbers and text.
"""

from __future__ import annotations

from tilewright.core.errors import TilewrightError


class ClusterError(TilewrightError):
    """A cluster that cannot be used: no worker there, keys that do not fit, or workers with
    something else than the command."""
