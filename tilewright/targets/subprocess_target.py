"""Runs a target in a process of its own, so that no config can end, block or mislead a session.

The parent keeps a watchdog on every call. A batch that dies, hangs or answers nonsense is run again
in ever smaller parts, in a fresh process where one was lost. At the end the configs that caused it
stand alone. These come back typed:

    the process dies, or the target raises    run_error       (while compiling: failure "died")
    no answer within the limit                timeout         (while compiling: "timeout")
    an answer that cannot be true             wrong_result    (while compiling: "nonsense")

All other configs of the batch get their honest answer. An answer that comes late cannot be taken
for that of a later call: its process is gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tilewright.core.child_process import Arrays, Frame, Header, Limits, RpcFailed, RpcProcess
from tilewright.core.errors import TilewrightError, WorkloadError
from tilewright.core.files import Json, as_number, as_object
from tilewright.targets.base import Capabilities, Configs, Space, Target
from tilewright.targets.capabilities import Enumerates, Estimates, MeasuresInOnePass, without
from tilewright.targets.features import Features, read_columns
from tilewright.targets.remote_target import RemoteTarget, TargetRaised
from tilewright.targets.worker import read_space
from tilewright.targets.workload import Workload

START_SECONDS = 600.0
"""For a process to start and describe itself: it may have to compile first."""
_ABOUT = {"name", "fingerprint", "deterministic", "hardware", "estimates"}
NAMED = "tilewright.targets.worker:make_warm"
"""Makes a target from its name (`text`) and its space."""


class TargetDown(TilewrightError):
    """A target whose process cannot be started, or cannot describe itself or a space."""


class IsolatedTarget(RemoteTarget):
    """Keeps the `Target` contract for the target that `factory` (`package.module:callable`, called
    with `arguments`, JSON) builds in a child process.

    `limits.seconds` is for one call on a batch; `limits.memory_bytes` bounds the child's address
    space. `beside` is the same target in this process: what is not asked of single candidates, as
    the baseline and the proof of the chosen one, is asked of it. Raises `TargetDown` if
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
        self._process = RpcProcess("tilewright.targets.worker", recipe, limits or Limits())
        self.beside = beside
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

    @property
    def capabilities(self) -> Capabilities:
        """Those of the target beside it, else estimates by the process; spaces are not enumerated
        in one call, which no watchdog could bound."""
        if self.beside is not None:
            return without(self.beside.capabilities, Enumerates, MeasuresInOnePass)
        return {Estimates: _RemoteEstimates(self._estimate)} if self._about["estimates"] else {}

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
            header, arrays = self.ask("estimate", workload, configs)
        except RpcFailed as error:
            raise TargetDown(f"target {self.name} gives no estimates: {error}") from None
        return Features(arrays["table"], read_columns(header["columns"]))

    def ask(
        self, call: str, workload: Workload, configs: Configs, programs: Arrays | None = None
    ) -> Frame:
        if not self._process.running:
            self._must({"call": "describe"})
        header, arrays = self._process.call(
            {"call": call, "workload": workload.to_json()}, {"configs": configs, **(programs or {})}
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
