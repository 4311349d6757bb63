"""Runs a target in a child process, so that no config can crash, block or corrupt a tuning run.

The parent process limits the time of every call. If a batch crashes, hangs or returns impossible
values, it is repeated with smaller and smaller parts, in a new process if the old one ended, until
the configs that cause the failure are isolated. Their status depends on what happened:

    the process dies, or the target raises    run_error       (when compiling: failure "died")
    no answer within the limit                timeout         (when compiling: "timeout")
    an impossible answer                      wrong_result    (when compiling: "nonsense")

All other configs of the batch get their real answers. A late answer cannot be mistaken for the
answer to a later call, because a process that exceeds its time limit is killed.
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
from tilewright.targets.capabilities import (
    Enumerates,
    Estimates,
    MeasuresInOnePass,
    exclude_capabilities,
)
from tilewright.targets.features import Features, read_columns
from tilewright.targets.remote_target import RemoteTarget, TargetRaised
from tilewright.targets.worker import read_space
from tilewright.targets.workload import Workload

START_SECONDS = 600.0
"""Minimum timeout in seconds for a process to start and to describe itself. The process may have to
compile kernels first."""
_ABOUT = {"name", "fingerprint", "deterministic", "hardware", "estimates"}
NAMED = "tilewright.targets.worker:make_warm"
"""Import path of a factory that creates a target from the target's text (`text`) and the name of
its space."""


class TargetDown(TilewrightError):
    """Raised if the target's process cannot be started, or cannot describe itself or a space."""


class IsolatedTarget(RemoteTarget):
    """Implementation of the `Target` contract that runs a target in a child process.

    Args:
        factory: function that builds the target in the child process, as `package.module:callable`.
        arguments: keyword arguments of the factory, as JSON.
        limits: time limit of one call on a batch, and limit of the child's address space.
        beside: the same target in this process. It provides the optional capabilities, for example
            baselines and the verification of the best schedule. None if the target must not run in
            this process.

    Raises:
        TargetDown: the target cannot be built.
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
        """Name of the target in the child process."""
        return str(self._about["name"])

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the target in the child process."""
        return str(self._about["fingerprint"])

    @property
    def deterministic(self) -> bool:
        """True if the target in the child process is deterministic."""
        return bool(self._about["deterministic"])

    @property
    def processes(self) -> int:
        """Number of child processes that have been started so far."""
        return self._process.starts

    def hardware_features(self) -> dict[str, float]:
        """Return the features of the target in the child process."""
        hardware = as_object(self._about["hardware"])
        return {name: as_number(value) for name, value in hardware.items()}

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the target in this process. Without such a target, only `Estimates`.

        Estimates are then computed in the child process. `Enumerates` and `MeasuresInOnePass` are
        excluded: no time limit would fit the enumeration of a space, and a single pass would run in
        this process.
        """
        if self.beside is not None:
            return exclude_capabilities(self.beside.capabilities, Enumerates, MeasuresInOnePass)
        return {Estimates: _RemoteEstimates(self._estimate)} if self._about["estimates"] else {}

    def close(self) -> None:
        """End the child process. A later call starts a new one."""
        self._process.stop()

    def _space(self, workload: Workload) -> Space:
        header = self._call_or_raise({"call": "space", "workload": workload.to_json()})
        if "error" in header:
            raise WorkloadError(str(header["message"]))
        return read_space(header)

    def _estimate(self, workload: Workload, configs: Configs) -> Features:
        try:
            header, arrays = self.ask("estimate", workload, configs)
        except RpcFailed as error:
            raise TargetDown(f"the target {self.name} returned no estimates: {error}") from None
        return Features(arrays["table"], read_columns(header["columns"]))

    def ask(
        self, call: str, workload: Workload, configs: Configs, programs: Arrays | None = None
    ) -> Frame:
        """Send a call to the child process, which is started if it does not run.

        Raises:
            RpcFailed: the process ended, did not answer in time or sent an invalid answer.
            TargetRaised: the target raised an exception.
            TargetDown: the process cannot be started.
        """
        if not self._process.is_running:
            self._call_or_raise({"call": "describe"})
        header, arrays = self._process.call(
            {"call": call, "workload": workload.to_json()}, {"configs": configs, **(programs or {})}
        )
        if "error" in header:
            raise TargetRaised(f"{header['error']}: {header.get('message', '')}")
        return header, arrays

    def _describe(self) -> Header:
        about = self._call_or_raise({"call": "describe"})
        if set(about) != _ABOUT:
            raise TargetDown(
                f"the target process did not describe the target: {about.get('message', about)}"
            )
        return about

    def _call_or_raise(self, header: Header) -> Header:
        """Send a call that must succeed.

        The time limit is longer than usual, because the process may have to start first.
        """
        try:
            seconds = max(START_SECONDS, self._process.limits.seconds)
            return self._process.call(header, seconds=seconds)[0]
        except RpcFailed as error:
            recipe = " ".join(self._process.arguments)
            raise TargetDown(
                f"the target {recipe} cannot be started: {error}; try to use it without a "
                "separate process"
            ) from None


@dataclass(frozen=True)
class _RemoteEstimates:
    """Implementation of `targets.capabilities.Estimates` that asks the child process.

    Attributes:
        ask: requests the estimated features of configs from the child process.
    """

    ask: Callable[[Workload, Configs], Features]

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        return self.ask(workload, configs)
