"""A target whose batches are lowered and measured by the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from math import ceil
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Frame
from tilewright.core.files import Json, as_number
from tilewright.targets.base import Capabilities, Configs, Lowered, Measurements, Space, Target
from tilewright.targets.capabilities import (
    Enumerates,
    MeasuresInOnePass,
    Verifies,
    capability,
    exclude_capabilities,
    offers,
    specification_of,
)
from tilewright.targets.cluster.connection import check_answer, connect
from tilewright.targets.cluster.remote_worker import (
    FINGERPRINT,
    REFUSED,
    SECONDS,
    VERSION,
    Steps,
    lower_and_measure,
)
from tilewright.targets.registry import kind_of
from tilewright.targets.remote_target import (
    Ask,
    Failed,
    RemoteTarget,
    checked_measurements,
    in_parts,
    joined_lowered,
    joined_measurements,
    read_lowered,
)
from tilewright.targets.workload import Workload

CALL_SECONDS = 0.1
"""Target duration of one call in seconds. A batch that takes longer is split into several calls, at
most one per slot of the cluster. Much shorter calls would spend a large part of their time on
communication."""

T = TypeVar("T", Lowered, Measurements)


class ClusterTarget(RemoteTarget):
    """Target that sends its batches to the workers of a cluster.

    Spaces, estimates, the baseline and the verification of the chosen schedule come from the same
    target in this process (the local target). Compiled programs stay on the workers. If a worker
    has to measure a config that another worker lowered, it lowers the config again.

    `lower` and `measure` raise `ClusterError` if the connection to the cluster is lost, or if the
    target of a worker differs from the local target.

    Args:
        here: the local target.
        recipe: description from which each worker builds its own target, see `recipe_of`.
        cluster: address of the cluster.
        isolate: maximum seconds for a batch, which the worker then runs in a separate process; 0
            for no limit.
    """

    def __init__(
        self, here: Target, recipe: dict[str, Json], cluster: str, isolate: float = 0.0
    ) -> None:
        self.here = self.beside = here
        self.cluster = cluster
        self.specification: dict[str, Json] = recipe | {
            "isolate": isolate, FINGERPRINT: here.fingerprint, VERSION: version("tilewright"),
        }  # fmt: skip
        self._row_seconds: dict[tuple[str, str], float] = {}  # by steps and workload

    @property
    def name(self) -> str:
        """Name of the local target."""
        return self.here.name

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the local target, with which the targets of the workers must agree."""
        return self.here.fingerprint

    @property
    def deterministic(self) -> bool:
        """True if the local target is deterministic."""
        return self.here.deterministic

    def hardware_features(self) -> dict[str, float]:
        """Return the hardware features of the local target."""
        return self.here.hardware_features()

    def space(self, workload: Workload) -> Space:
        """Return the schedule space of the local target."""
        return self.here.space(workload)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the local target, except for `Enumerates`.

        The duration of a call that enumerates a space would not be limited.
        """
        known = exclude_capabilities(self.here.capabilities, Enumerates)
        matching = [kind for kind in (Verifies, MeasuresInOnePass) if kind in known]
        return {**known, **offers(self, *matching)}

    def measure(self, lowered: Lowered) -> Measurements:
        """Measure a batch on the workers.

        A batch that names its own space, such as a baseline, was lowered locally and is measured
        locally.

        Args:
            lowered: the batch.
        """
        return self.here.measure(lowered) if lowered.space else super().measure(lowered)

    def lower_and_measure(
        self, workload: Workload, configs: Configs, progress: Callable[[int], None] | None = None
    ) -> tuple[Lowered, Measurements]:
        """Lower and measure configs on the workers, in one call per part of the batch.

        Args:
            workload: the workload.
            configs: knob indices, int array of shape (n, knobs).
            progress: called with the number of configs of each finished part.
        """

        def ask(rows: NDArray[np.int64]) -> tuple[Lowered, Measurements]:
            header, arrays = self._call("both", workload, configs[rows])
            if progress is not None:
                progress(len(rows))
            lowered = read_lowered(workload, configs[rows], header, arrays)
            return lowered, checked_measurements(len(rows), arrays)

        done = self._in_calls("both", workload, ask, np.arange(len(configs)))
        lowered = joined_lowered(workload, configs, [(rows, low) for rows, (low, _) in done])
        return lowered, joined_measurements(lowered, [(rows, item) for rows, (_, item) in done])

    def verify(self, lowered: Lowered, seed: int = 0) -> NDArray[np.int64]:
        """Compare the outputs of programs with the reference, in this process.

        If workers lowered the batch, it is lowered again in this process.

        Args:
            lowered: the batch to verify.
            seed: seed of the random tensors.

        Returns:
            Number of wrong output values per config, as for `Verifies.verify`.
        """
        known = capability(self.here, Verifies)
        assert known is not None, "offered only where the target here has it"
        if not lowered.space:
            lowered = self.here.lower(lowered.workload, lowered.configs)
        return known.verify(lowered, seed)

    def ask(
        self, call: str, workload: Workload, configs: Configs, programs: Arrays | None = None
    ) -> Frame:
        """Send a call for some configs to any worker of the cluster.

        Args:
            call: name of the call: "measure", or anything else to lower the configs.
            workload: the workload.
            configs: knob indices, shape (n, knobs).
            programs: ignored, because the worker keeps or rebuilds the programs.

        Returns:
            The JSON header and the arrays of the answer.

        Raises:
            ClusterError: the cluster cannot execute the call.
        """
        return self._call("measure" if call == "measure" else "lower", workload, configs)

    def answers(
        self, call: str, workload: Workload, ask: Ask[T], failed: Failed[T], rows: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.int64], T]]:
        """Get the answers for some configs of a batch.

        If the call is expected to take long, it is split into parts that run on several workers at
        the same time.

        Args:
            call: name of the call, such as "lower" or "measure".
            workload: the workload.
            ask: function that returns the answer for the given rows of the batch.
            failed: function that returns a substitute answer for rows whose call failed.
            rows: indices of the configs in the batch, shape (n,).

        Returns:
            Pairs of row indices and the answer for these rows.
        """
        done = self._in_calls(call, workload, lambda part: in_parts(ask, failed, part), rows)
        return [answer for _, answers in done for answer in answers]

    def _call(self, steps: Steps, workload: Workload, configs: Configs) -> Frame:
        header, arrays = connect(self.cluster).call(
            lower_and_measure, self.specification, workload.to_json(), configs, steps
        )
        if REFUSED in header:
            check_answer(self.cluster, header[REFUSED])
        row_seconds = as_number(header[SECONDS]) / max(1, len(configs))
        self._row_seconds[steps, workload.id] = self._row_seconds[steps, ""] = row_seconds
        return header, arrays

    def _in_calls(
        self, steps: str, workload: Workload, ask: Callable[[NDArray[np.int64]], Any],
        rows: NDArray[np.int64],
    ) -> list[tuple[NDArray[np.int64], Any]]:  # fmt: skip
        parts = self._parts(steps, workload, rows)
        if len(parts) < 2:
            return [(part, ask(part)) for part in parts if len(part)]
        with ThreadPoolExecutor(len(parts)) as pool:
            return list(zip(parts, pool.map(ask, parts), strict=True))

    def _parts(
        self, steps: str, workload: Workload, rows: NDArray[np.int64]
    ) -> list[NDArray[np.int64]]:
        # Without an answer for this workload, assume the time per row of the last workload.
        seconds = self._row_seconds.get(
            (steps, workload.id), self._row_seconds.get((steps, ""), CALL_SECONDS)
        )
        wanted = min(ceil(seconds * len(rows) / CALL_SECONDS), len(rows))
        if wanted < 2:
            return [rows]
        return np.array_split(rows, max(1, min(wanted, connect(self.cluster).slots())))


def recipe_of(here: Target, name: str, space: str) -> dict[str, Json]:
    """Describe a target so that `remote_worker.rebuild_target` can build it on another machine.

    Workers do not read files. If the target was read from a file, the description therefore
    contains the content of the file instead of its name.

    Args:
        here: the target.
        name: name of the target, as for `--target`.
        space: name of the schedule space; "" for the default space.

    Returns:
        The arguments of `rebuild_target`.
    """
    kind, rest = kind_of(name)
    written = specification_of(here)
    return {
        "kind": kind.name,
        "preset": rest if written is None else "",
        "specification": written,
        "space": kind.space_named(space),
    }


def on_cluster(here: Target, name: str, space: str, isolate: float, cluster: str) -> Target:
    """Return a target whose batches are lowered and measured by the workers of a cluster.

    Args:
        here: the local target.
        name: name of the target, as for `--target`.
        space: name of the schedule space; "" for the default space.
        isolate: maximum seconds for a batch, which then runs in a separate process; 0 for no limit.
        cluster: `tls://HOST:PORT` of a Dask scheduler, or `local:N`. If it is "", the result is
            `here`.
    """
    return ClusterTarget(here, recipe_of(here, name, space), cluster, isolate) if cluster else here
