"""A target in a process of its own, so that no config can end, block or mislead a session.

The parent keeps a watchdog on every call. A batch that dies, hangs or answers nonsense is run again
in ever smaller parts, in a fresh process where one was lost, until the configs that did it stand
alone; these come back typed:

    the process dies, or the target raises    run_error       (while compiling: failure "died")
    no answer within the limit                timeout         (while compiling: "timeout")
    an answer that cannot be true             wrong_result    (while compiling: "nonsense")

All other configs of the batch get their honest answer. An answer that comes late cannot be taken
for that of a later call: its process is gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from targets.base import (
    STATUSES,
    Configs,
    Lowered,
    Measurements,
    Ragged,
    Space,
    Status,
    Target,
)
from targets.capabilities import Enumerates, MeasuresInOnePass, capability
from targets.errors import TilewrightError, WorkloadError
from targets.features import Features, read_columns
from targets.files import Json, as_number, as_object
from targets.rpc_process import Arrays, Frame, Header, Limits, RpcFailed, RpcNonsense, RpcProcess
from targets.worker import read_programs, read_space, write_programs
from targets.workload import Workload

PARTS = 8
"""Into how many parts a batch that failed is cut."""
_ABOUT = {"name", "fingerprint", "deterministic", "hardware", "estimates"}
START_SECONDS = 600.0
"""For a process to start and describe itself: it may have to compile first."""
STATUS_OF: dict[str, Status] = {
    "died": "run_error",
    "timeout": "timeout",
    "nonsense": "wrong_result",
}

T = TypeVar("T", Lowered, Measurements)
C = TypeVar("C")
NAMED = "targets.worker:make_warm"
"""Makes a target from its name (`text`) and its space."""


class TargetDown(TilewrightError):
    """A target whose process cannot be started, or cannot describe itself or a space."""


@dataclass(frozen=True)
class Loss:
    """Why a config got no honest answer."""

    kind: str
    reason: str


class IsolatedTarget:
    """Keeps the `Target` contract for the target that `factory` (`package.module:callable`, called
    with `arguments`, JSON) builds in a child process.

    `limits.seconds` is for one call on a batch; `limits.memory_bytes` bounds the child's address
    space. `beside` is the same target in this process: what is not asked of single candidates, as
    the untuned schedule and the proof of the chosen one, is asked of it. Raises `TargetDown` if
    the target cannot even be built.
    """

    def __init__(
        self,
        factory: str,
        arguments: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        beside: Target | None = None,
    ) -> None:
        recipe = [factory, json.dumps(dict(arguments or {}))]
        self._process = RpcProcess("targets.worker", recipe, limits or Limits())
        self._beside = beside
        self._about = self._describe()
        self.space = lru_cache(maxsize=64)(self._space)

    @property
    def name(self) -> str:
        return str(self._about["name"])

    @property
    def fingerprint(self) -> str:
        return str(self._about["fingerprint"])

    @property
    def deterministic(self) -> bool:
        return bool(self._about["deterministic"])

    @property
    def processes(self) -> int:
        """How many processes have been used so far."""
        return self._process.starts

    def hardware_features(self) -> dict[str, float]:
        hardware = as_object(self._about["hardware"])
        return {name: as_number(value) for name, value in hardware.items()}

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        def ask(rows: NDArray[np.int64]) -> Lowered:
            header, arrays = self._call("lower", workload, configs[rows])
            return _lowered(workload, configs[rows], header, arrays)

        def failed(rows: NDArray[np.int64], loss: Loss) -> Lowered:
            return _not_lowered(workload, configs[rows], loss)

        return _joined_lowered(workload, configs, _in_parts(ask, failed, np.arange(len(configs))))

    def measure(self, lowered: Lowered) -> Measurements:
        def ask(rows: NDArray[np.int64]) -> Measurements:
            programs = write_programs(lowered.rows(rows).programs)
            _, arrays = self._call("measure", lowered.workload, lowered.configs[rows], programs)
            return _checked(len(rows), arrays)

        def failed(rows: NDArray[np.int64], loss: Loss) -> Measurements:
            return Measurements.nothing(len(rows), STATUS_OF[loss.kind], f"run: {loss.reason}")

        compiled = np.flatnonzero(lowered.ok)
        done = _in_parts(ask, failed, compiled)
        return _joined_measurements(lowered, done)

    def capability(self, kind: type[C]) -> C | None:
        """Estimates come from the process, the rest from the target beside it; spaces are not
        enumerated in one call, which no watchdog could bound."""
        if kind in (Enumerates, MeasuresInOnePass):
            return None
        if self._beside is None and self._about["estimates"]:
            remote = _RemoteEstimates(self._estimate)
            return remote if isinstance(remote, kind) else None
        return None if self._beside is None else capability(self._beside, kind)

    def close(self) -> None:
        """End the process; a later call starts another."""
        self._process.stop()

    def _space(self, workload: Workload) -> Space:
        header = self._must({"call": "space", "workload": workload.to_json()})
        if "error" in header:
            raise WorkloadError(str(header["message"]))
        return read_space(header)

    def _estimate(self, workload: Workload, configs: Configs) -> Features:
        try:
            header, arrays = self._call("estimate", workload, configs)
        except RpcFailed as error:
            raise TargetDown(f"target {self.name} gives no estimates: {error}") from None
        return Features(arrays["table"], read_columns(header["columns"]))

    def _call(
        self, call: str, workload: Workload, configs: Configs, programs: Arrays | None = None
    ) -> Frame:
        if not self._process.running:
            self._must({"call": "describe"})
        header, arrays = self._process.call(
            {"call": call, "workload": workload.to_json()},
            {"configs": configs, **(programs or {})},
        )
        if "error" in header:
            raise TargetRaised(f"{header['error']}: {header.get('message', '')}")
        return header, arrays

    def _describe(self) -> Header:
        about = self._must({"call": "describe"})
        if set(about) != _ABOUT:
            raise TargetDown(f"the target does not describe itself: {about.get('message', about)}")
        return about

    def _must(self, header: Header) -> Header:
        """A call without which nothing works; starting the process may take its time."""
        try:
            seconds = max(START_SECONDS, self._process.limits.seconds)
            return self._process.call(header, seconds=seconds)[0]
        except RpcFailed as error:
            recipe = " ".join(self._process.arguments)
            raise TargetDown(f"target {recipe} cannot be used: {error}; try it alone") from None


@dataclass(frozen=True)
class _RemoteEstimates:
    """Keeps `targets.capabilities.Estimates` by asking the process."""

    ask: Callable[[Workload, Configs], Features]

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        return self.ask(workload, configs)


class TargetRaised(RpcFailed):
    """The target raised where the contract wants a typed row; its process lives on."""


def _in_parts(
    ask: Callable[[NDArray[np.int64]], T],
    failed: Callable[[NDArray[np.int64], Loss], T],
    rows: NDArray[np.int64],
) -> list[tuple[NDArray[np.int64], T]]:
    """Answers with the rows they are for; a part that fails is cut up until one row is left."""
    if not len(rows):
        return []
    try:
        return [(rows, ask(rows))]
    except RpcFailed as error:
        if len(rows) == 1:
            return [(rows, failed(rows, Loss(error.kind, str(error))))]
    parts = np.array_split(rows, min(PARTS, len(rows)))
    return [answer for part in parts for answer in _in_parts(ask, failed, part)]


# -- what an answer must look like --------------------------------------------------------------


def _lowered(workload: Workload, configs: Configs, header: Header, arrays: Arrays) -> Lowered:
    columns = header.get("columns")
    hidden = arrays.get("hidden", np.empty(0))
    texts = [arrays.get("failures", np.empty(0)), arrays.get("reasons", np.empty(0))]
    if (
        not isinstance(columns, list)
        or any(text.shape != (len(configs),) for text in texts)
        or hidden.shape != (len(configs), len(columns))
        or hidden.dtype.kind not in "fiub"
    ):
        raise RpcNonsense("the target lowered to arrays of the wrong shape")
    failures, reasons = (text.astype(object) for text in texts)
    try:
        features = Features(hidden.astype(np.float64), read_columns(columns))
        programs = read_programs(arrays)
    except (ValueError, KeyError, TypeError):
        raise RpcNonsense("the target lowered to arrays that are no programs") from None
    if any(len(part) != len(configs) for part in programs.values()):
        raise RpcNonsense("the target lowered to programs of other configs")
    return Lowered(workload, configs, failures, reasons, features, programs)


def _checked(n: int, arrays: Arrays) -> Measurements:
    """Measurements whose every row is either honest or typed `wrong_result`."""
    wanted = {"status": "UO", "reason": "UO", "cycles": "iu", "seconds": "f"}
    for name, kinds in wanted.items():
        array = arrays.get(name, np.empty(0))
        if array.shape != (n,) or array.dtype.kind not in kinds:
            raise RpcNonsense(f"the target measured '{name}' of the wrong shape or type")
    counters = {
        name.removeprefix("counter_"): array.astype(np.int64)
        for name, array in arrays.items()
        if name.startswith("counter_") and array.shape == (n,) and array.dtype.kind in "iu"
    }
    status, reason = arrays["status"].astype(object), arrays["reason"].astype(object)
    cycles, seconds = arrays["cycles"].astype(np.int64), arrays["seconds"].astype(np.float64)
    valid = status == "valid"
    possible = ((cycles > 0) | (cycles == -1)) & np.isfinite(seconds) & (seconds > 0)
    known = np.isin(status.astype(np.str_), STATUSES)
    nonsense = ~known | (valid & ~possible)
    reason[nonsense] = [
        f"run: the target answered '{s}' with {c} cycles in {t:g} s"
        for s, c, t in zip(status[nonsense], cycles[nonsense], seconds[nonsense], strict=True)
    ]
    status[nonsense] = "wrong_result"
    honest = valid & ~nonsense
    cycles[~honest], seconds[~honest] = -1, np.nan
    return Measurements(status, reason, cycles, seconds, counters, _repeats(n, arrays))


def _repeats(n: int, arrays: Arrays) -> Ragged | None:
    """The seconds of every repetition, if they were sent."""
    try:
        found = read_programs(arrays).get("repeats")
    except (ValueError, KeyError):
        raise RpcNonsense("the target measured repetitions of the wrong shape") from None
    if found is not None and (len(found) != n or found.values.dtype.kind != "f"):
        raise RpcNonsense("the target measured repetitions of the wrong shape")
    return found


# -- rows without an answer, and parts put together ---------------------------------------------


def _not_lowered(workload: Workload, configs: Configs, loss: Loss) -> Lowered:
    n = len(configs)
    return Lowered(
        workload,
        configs,
        np.full(n, loss.kind, dtype=object),
        np.full(n, f"lower: {loss.reason}", dtype=object),
        Features.none(n),
    )


def _joined_lowered(
    workload: Workload, configs: Configs, parts: list[tuple[NDArray[np.int64], Lowered]]
) -> Lowered:
    """Parts follow each other in the order of the configs."""
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
        name: Ragged.joined([(len(part), part.programs.get(name)) for _, part in parts])
        for name in names
    }
    return Lowered(workload, configs, failures, reasons, Features(hidden, columns), programs)


def _joined_measurements(
    lowered: Lowered, parts: list[tuple[NDArray[np.int64], Measurements]]
) -> Measurements:
    whole = Measurements.nothing(len(lowered))
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
        return replace(whole, repeats=Ragged.of(repeats))
    return whole
