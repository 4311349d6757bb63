"""Answers calls on a worker of `targets.cluster`: lowers and measures on its own target.

A call is a function of its arguments alone. A worker keeps no files, and a call that was lost with
its worker is made again on another. Calls name a kind of target and give its specification, a
workload and configs. Programs are not among them: a worker runs what it lowered itself.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Header, Limits
from tilewright.core.files import Json, as_number, as_object, as_text
from tilewright.targets.base import Configs, Lowered, Measurements, Target
from tilewright.targets.capabilities import Watched, capability
from tilewright.targets.cluster import ClusterError
from tilewright.targets.cluster.channel import CALL, OFFERS
from tilewright.targets.features import Features
from tilewright.targets.registry import TargetError, rebuild, target_kinds
from tilewright.targets.remote_target import joined_lowered
from tilewright.targets.subprocess_target import IsolatedTarget
from tilewright.targets.worker import lowered_reply, measured_reply, warmed_up
from tilewright.targets.workload import Workload

LOWER, MEASURE = "lower", "measure"
RECIPE, FINGERPRINT, WORKLOAD = "recipe", "fingerprint", "workload"
"""Of a call's header: how to make the target, what it then is, and what its configs are of."""
SECONDS = "seconds"
"""Of an answer's header: how long the worker took."""
NO_LIMIT = 30 * 86400.0
"""Seconds for a batch of a run that sets no limit."""
_KEPT_ROWS = 2048
_making = threading.Lock()


class TargetService:
    """Implements `serve.Service`: so many `slots`, each with targets in processes of its own, so
    that no config can end or block this one."""

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def about(self) -> Header:
        """It offers no board."""
        return {OFFERS: ""}

    def answer(self, header: Header, arrays: dict[str, NDArray[Any]]) -> tuple[Header, Arrays]:
        """`lower` or `measure` configs of shape (n, knobs). Raises `ClusterError` where its target
        is not the command's, and what the target raises."""
        call, recipe = as_text(header[CALL]), as_object(header[RECIPE])
        workload = Workload.from_json(as_object(header[WORKLOAD]))
        configs = np.ascontiguousarray(arrays["configs"])
        with _making:
            target = _target(json.dumps(recipe), threading.get_ident())
            found = target.fingerprint
        if found != header[FINGERPRINT]:
            raise ClusterError(
                f"its target has the fingerprint {found}, the command's {header[FINGERPRINT]}: "
                "another version of tilewright, or other hardware"
            )
        _check(target, workload, configs)
        begin = time.perf_counter()
        if call == LOWER:
            reply, results = lowered_reply(target.lower(workload, configs))
        elif call == MEASURE:
            reply, results = {}, measured_reply(target.measure(_unlowered(workload, configs)))
        else:
            raise ClusterError(f"there is no call '{call}'")
        return reply | {SECONDS: time.perf_counter() - begin}, results


class ProgramKeeper:
    """A target whose programs go nowhere: it measures configs by what it lowered last, and lowers
    others again. Batches have configs of shape (n, knobs)."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kept: OrderedDict[tuple[str, bytes], tuple[Lowered, int]] = OrderedDict()
        self.name, self.fingerprint = target.name, target.fingerprint
        self.deterministic, self.capabilities = target.deterministic, target.capabilities
        self.space, self.hardware_features = target.space, target.hardware_features

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """As the target, without the programs."""
        return replace(self._lowered(workload, configs), programs={})

    def measure(self, lowered: Lowered) -> Measurements:
        """As the target, whatever programs are given."""
        workload, configs = lowered.workload, lowered.configs
        keys = [(workload.id, config.tobytes()) for config in configs]
        if not all(key in self._kept for key in keys):
            return self._target.measure(self._lowered(workload, configs))
        found = [self._kept[key] for key in keys]
        rows = [
            (np.array([at]), batch.rows(np.array([row]))) for at, (batch, row) in enumerate(found)
        ]
        return self._target.measure(joined_lowered(workload, configs, rows))

    def _lowered(self, workload: Workload, configs: Configs) -> Lowered:
        lowered = self._target.lower(workload, configs)
        for row, config in enumerate(configs):
            self._kept[workload.id, config.tobytes()] = lowered, row
        while len(self._kept) > _KEPT_ROWS:
            self._kept.popitem(last=False)
        return lowered


@lru_cache(maxsize=64)
def _target(recipe: str, thread: int) -> Target:
    """Kept, of a thread: a process goes with it."""
    about: dict[str, Any] = json.loads(recipe)
    seconds = as_number(about.pop("isolate"))
    here = remade(**about)
    if (watched := capability(here, Watched)) is not None:
        return ProgramKeeper(watched.within(seconds) if seconds else here)
    factory, limits = f"{__name__}:{remade_warm.__name__}", Limits(seconds or NO_LIMIT)
    return IsolatedTarget(factory, about, limits)


def remade(
    kind: str, preset: str, space: str, specification: Mapping[str, Json] | None = None
) -> Target:
    """A target as a command has it, by what it says of it; no file is read that a command names.
    Raises `TargetError`, and what the kind of target raises."""
    if specification is not None:
        return rebuild(kind, specification, space)
    found = target_kinds().get(kind)
    if found is None or preset not in ("", *found.presets()):
        raise TargetError(f"it has no target of the kind '{kind}' that is called '{preset}'")
    return found.make(preset, found.space_named(space))


def remade_warm(**about: Any) -> Target:
    """The same, warmed up and with its programs: for a process of its own."""
    return ProgramKeeper(warmed_up(remade(**about)))


def _check(target: Target, workload: Workload, configs: NDArray[Any]) -> None:
    """Raises `ClusterError` for configs that are not of the target's space."""
    sizes = target.space(workload).cardinalities
    fit = configs.dtype == np.int32 and configs.ndim == 2 and configs.shape[1] == len(sizes)
    if not fit or (configs < 0).any() or (configs >= sizes).any():
        raise ClusterError(f"{workload}: the configs are not of its target's space")


def _unlowered(workload: Workload, configs: Configs) -> Lowered:
    texts = np.full(len(configs), "", dtype=object)
    return Lowered(workload, configs, texts, texts, Features.none(len(configs)))
