"""Base class of targets that answer from another process or machine, where calls may be lost.

If a call on a batch is lost, or its answer is impossible, the call is repeated with smaller and
smaller parts of the batch, until the configs that cause the failure are isolated. These configs get
a status from `STATUS_OF`; all other configs get their real answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Frame, Header, RpcFailed, RpcNonsense
from tilewright.targets.base import STATUSES, Configs, Lowered, Measurements, Ragged, Status, Target
from tilewright.targets.features import Features, read_columns
from tilewright.targets.worker import read_programs, write_programs
from tilewright.targets.workload import Workload

PARTS = 8
"""Maximum number of parts into which the rows of a failed call are split before they are sent
again."""
STATUS_OF: dict[str, Status] = {
    "died": "run_error",
    "timeout": "timeout",
    "nonsense": "wrong_result",
}

T = TypeVar("T", Lowered, Measurements)
Ask = Callable[[NDArray[np.int64]], T]
"""Function that sends a call for some rows of a batch and returns the answer. Its argument is an
array of row indices of shape (n,). The function raises `RpcFailed` if the call is lost."""


@dataclass(frozen=True)
class Loss:
    """Reason why a config got no valid answer.

    Attributes:
        kind: what happened to the call, a key of `STATUS_OF`.
        reason: explanation for the user.
    """

    kind: str
    reason: str


Failed = Callable[[NDArray[np.int64], Loss], T]
"""Function that creates a substitute answer for rows that got none. Its arguments are the row
indices of shape (n,) and the reason for the failure."""


class RemoteTarget:
    """Base class that implements `lower` and `measure` of `Target` through remote calls.

    A call may be lost, for example because the remote process crashes. A subclass implements `ask`,
    which sends one call. It may override `answers`, which divides a batch into calls.

    Attributes:
        beside: the same target in this process; None if there is none.
    """

    beside: Target | None = None

    def ask(
        self, call: str, workload: Workload, configs: Configs, programs: Arrays | None = None
    ) -> Frame:
        """Send one call and return the answer of the remote `targets.worker.Worker`.

        Args:
            call: name of the call, for example "lower" or "measure".
            workload: the workload.
            configs: knob indices, shape (n, knobs).
            programs: compiled programs as plain arrays, for calls that need them.

        Returns:
            The JSON header and the arrays of the answer.

        Raises:
            RpcFailed: the call was lost, or the answer is impossible.
        """
        raise NotImplementedError

    def answers(
        self, call: str, workload: Workload, ask: Ask[T], failed: Failed[T], rows: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.int64], T]]:
        """Get the answers for some configs of a batch, possibly in several calls.

        Args:
            call: name of the call, for example "lower" or "measure".
            workload: the workload.
            ask: function that returns the answer for the given rows of the batch.
            failed: function that returns a substitute answer for rows whose call failed.
            rows: indices of the configs in the batch, shape (n,).

        Returns:
            Pairs of row indices and the answer for these rows. Together they cover all rows.
        """
        return in_parts(ask, failed, rows)

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Compile a batch in the other process.

        If the call for a config is lost, the failure class of the config says how: see `STATUS_OF`.

        Args:
            workload: the workload.
            configs: knob indices, shape (n, knobs).
        """

        def ask(rows: NDArray[np.int64]) -> Lowered:
            header, arrays = self.ask("lower", workload, configs[rows])
            return read_lowered(workload, configs[rows], header, arrays)

        def failed(rows: NDArray[np.int64], loss: Loss) -> Lowered:
            return _not_lowered(workload, configs[rows], loss)

        done = self.answers("lower", workload, ask, failed, np.arange(len(configs)))
        return joined_lowered(workload, configs, done)

    def measure(self, lowered: Lowered) -> Measurements:
        """Run the programs of a batch in the other process.

        A config whose call is lost gets the status that `STATUS_OF` assigns to the loss.
        """

        def ask(rows: NDArray[np.int64]) -> Measurements:
            programs = write_programs(lowered.rows(rows).programs)
            _, arrays = self.ask("measure", lowered.workload, lowered.configs[rows], programs)
            return checked_measurements(len(rows), arrays)

        def failed(rows: NDArray[np.int64], loss: Loss) -> Measurements:
            return Measurements.unmeasured(len(rows), STATUS_OF[loss.kind], f"run: {loss.reason}")

        done = self.answers("measure", lowered.workload, ask, failed, np.flatnonzero(lowered.ok))
        measured = joined_measurements(lowered, done)
        # the local target gives more precise statuses for configs that failed to compile
        if self.beside is not None and not lowered.ok.all():
            rows = np.flatnonzero(~lowered.ok)
            failures = self.beside.measure(lowered.rows(rows))
            measured.status[rows], measured.reason[rows] = failures.status, failures.reason
        return measured


class TargetRaised(RpcFailed):
    """Raised if the remote target raised an exception instead of reporting a failed config.

    The remote process is still alive.
    """


def in_parts(
    ask: Ask[T], failed: Failed[T], rows: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], T]]:
    """Get the answers for some rows of a batch, and isolate the rows that make a call fail.

    If a call fails, it is repeated with smaller parts of its rows, until single rows are left.

    Args:
        ask: returns the answer for some rows.
        failed: returns a substitute answer for a single row that fails.
        rows: row indices, shape (n,).

    Returns:
        Pairs of row indices and the answer for these rows. Together they cover all rows.
    """
    if not len(rows):
        return []
    try:
        return [(rows, ask(rows))]
    except RpcFailed as error:
        if len(rows) == 1:
            return [(rows, failed(rows, Loss(error.kind, str(error))))]
    parts = np.array_split(rows, min(PARTS, len(rows)))
    return [answer for part in parts for answer in in_parts(ask, failed, part)]


# -- checking of answers -------------------------------------------------------------------------


def read_lowered(workload: Workload, configs: Configs, header: Header, arrays: Arrays) -> Lowered:
    """Read a lowered batch from the reply that `targets.worker.lowered_reply` created.

    Args:
        workload: the workload.
        configs: knob indices, shape (n, knobs).
        header: header of the reply.
        arrays: arrays of the reply.

    Raises:
        RpcNonsense: the arrays have the wrong shape or type.
    """
    columns = header.get("columns")
    hidden = arrays.get("hidden", np.empty(0))
    texts = [arrays.get("failures", np.empty(0)), arrays.get("reasons", np.empty(0))]
    if (
        not isinstance(columns, list)
        or any(text.shape != (len(configs),) for text in texts)
        or hidden.shape != (len(configs), len(columns))
        or hidden.dtype.kind not in "fiub"
    ):
        raise RpcNonsense("the target's lower() returned arrays of the wrong shape")
    failures, reasons = (text.astype(object) for text in texts)
    try:
        features = Features(hidden.astype(np.float64), read_columns(columns))
        programs = read_programs(arrays)
    except (ValueError, KeyError, TypeError):
        raise RpcNonsense("the target's lower() returned arrays that are not programs") from None
    if any(len(part) != len(configs) for part in programs.values()):
        raise RpcNonsense("the target's lower() returned programs of other configs")
    return Lowered(workload, configs, failures, reasons, features, programs)


def checked_measurements(n: int, arrays: Arrays) -> Measurements:
    """Read measurements from a reply, and check them.

    Rows with impossible values, for example an unknown status or a negative latency, get the status
    `wrong_result`.

    Args:
        n: expected number of rows.
        arrays: arrays of the reply, shape (n,).

    Raises:
        RpcNonsense: the arrays have the wrong shape or type.
    """
    wanted = {"status": "UO", "reason": "UO", "cycles": "iu", "seconds": "f"}
    for name, kinds in wanted.items():
        array = arrays.get(name, np.empty(0))
        if array.shape != (n,) or array.dtype.kind not in kinds:
            raise RpcNonsense(
                f"the target's measure() returned '{name}' with the wrong shape or type"
            )
    counters = {
        name.removeprefix("counter_"): array.astype(np.int64)
        for name, array in arrays.items()
        if name.startswith("counter_") and array.shape == (n,) and array.dtype.kind in "iu"
    }
    status, reason = arrays["status"].astype(object), arrays["reason"].astype(object)
    cycles, seconds = arrays["cycles"].astype(np.int64), arrays["seconds"].astype(np.float64)
    valid = status == "valid"
    possible = ((cycles > 0) | (cycles == -1)) & np.isfinite(seconds) & (seconds > 0)
    is_known = np.isin(status.astype(np.str_), STATUSES)
    nonsense = ~is_known | (valid & ~possible)
    reason[nonsense] = [
        f"run: the target returned '{s}' with {c} cycles in {t:g} s"
        for s, c, t in zip(status[nonsense], cycles[nonsense], seconds[nonsense], strict=True)
    ]
    status[nonsense] = "wrong_result"
    honest = valid & ~nonsense
    cycles[~honest], seconds[~honest] = -1, np.nan
    return Measurements(status, reason, cycles, seconds, counters, _repeats(n, arrays))


def _repeats(n: int, arrays: Arrays) -> Ragged | None:
    """Return the seconds of every repetition of each config.

    Args:
        n: number of configs.
        arrays: arrays of the remote reply, by name.

    Returns:
        One row per config; None if the reply has no repetitions.
    """
    try:
        repeats = read_programs(arrays).get("repeats")
    except (ValueError, KeyError):
        raise RpcNonsense("the target's measure() returned repeats of the wrong shape") from None
    if repeats is not None and (len(repeats) != n or repeats.values.dtype.kind != "f"):
        raise RpcNonsense("the target's measure() returned repeats of the wrong shape")
    return repeats


# -- assembling of batches -----------------------------------------------------------------------


def _not_lowered(workload: Workload, configs: Configs, loss: Loss) -> Lowered:
    n = len(configs)
    return Lowered(
        workload,
        configs,
        np.full(n, loss.kind, dtype=object),
        np.full(n, f"lower: {loss.reason}", dtype=object),
        Features.empty(n),
    )


def joined_lowered(
    workload: Workload, configs: Configs, parts: list[tuple[NDArray[np.int64], Lowered]]
) -> Lowered:
    """Assemble a lowered batch from parts.

    Args:
        workload: the workload.
        configs: knob indices of the whole batch, shape (n, knobs).
        parts: row indices and the lowered configs of each part. The parts are in the order of the
            batch and cover all rows, because their programs are concatenated.
    """
    columns = max((part.hidden.columns for _, part in parts), key=len, default=())
    n = len(configs)
    failures, reasons = np.full(n, "", dtype=object), np.full(n, "", dtype=object)
    hidden = np.full((n, len(columns)), np.nan)
    for rows, part in parts:
        failures[rows], reasons[rows] = part.failures, part.reasons
        if part.hidden.columns == columns:
            hidden[rows] = part.hidden.matrix
    names = dict.fromkeys(name for _, part in parts for name in part.programs)
    programs = {
        name: Ragged.concatenate([(len(part), part.programs.get(name)) for _, part in parts])
        for name in names
    }
    return Lowered(workload, configs, failures, reasons, Features(hidden, columns), programs)


def joined_measurements(
    lowered: Lowered, parts: list[tuple[NDArray[np.int64], Measurements]]
) -> Measurements:
    """Assemble the measurements of a batch from parts.

    Args:
        lowered: the whole batch.
        parts: row indices and the measurements of each part, in any order. Rows that are in no part
            get the status `compile_error` and the reason from `lowered`.
    """
    whole = Measurements.unmeasured(len(lowered))
    whole.reason[:] = lowered.reasons
    repeats = [np.empty(0)] * len(lowered)
    for rows, part in parts:
        whole.status[rows], whole.reason[rows] = part.status, part.reason
        whole.cycles[rows], whole.seconds[rows] = part.cycles, part.seconds
        for name, values in part.counters.items():
            every = whole.counters.setdefault(name, np.full(len(lowered), -1, dtype=np.int64))
            every[rows] = values
        if part.repeats is not None:
            for place, row in enumerate(rows.tolist()):
                repeats[row] = part.repeats[place]
    if any(part.repeats is not None for _, part in parts):
        return replace(whole, repeats=Ragged.from_rows(repeats))
    return whole
