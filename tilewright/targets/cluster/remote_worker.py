"""Functions that the workers of a cluster execute to lower and measure batches.

The result of a call depends only on its arguments: the description of a target, a workload and
configs. A worker stores no files. If a call is lost with its worker, it can therefore be repeated
on another worker. Compiled programs stay in the worker's memory, where later calls find them.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Header, Limits
from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_number
from tilewright.targets.base import Configs, Lowered, Measurements, Target
from tilewright.targets.capabilities import MeasuresInOnePass, capability
from tilewright.targets.cluster import ClusterError
from tilewright.targets.features import Features
from tilewright.targets.registry import TargetError, kind_named, rebuild, target_kinds
from tilewright.targets.remote_target import joined_lowered
from tilewright.targets.subprocess_target import IsolatedTarget
from tilewright.targets.worker import lowered_reply, measured_reply, warmed_up
from tilewright.targets.workload import Workload

Steps = Literal["lower", "measure", "both"]
VERSION, FINGERPRINT = "version", "fingerprint"
"""Keys that are added to the description of a target: the command's version of Tilewright, and the
target's fingerprint."""
SECONDS = "seconds"
"""Key in the header of a worker's answer: duration of the work in seconds."""
REFUSED = "refused"
"""Key in the header of a worker's answer: reason why the worker cannot execute the call. Errors
that would occur again are returned in this way, because Dask would retry a call that raises an
exception."""
_KEPT_ROWS = 2048
_making = threading.Lock()


def lower_and_measure(
    target: Mapping[str, Json], workload: Mapping[str, Any], configs: Configs, steps: Steps = "both"
) -> tuple[Header, dict[str, NDArray[Any]]]:
    """Lower configs, measure them, or both, on this worker.

    Args:
        target: description of the target (`targets.cluster.target.recipe_of`), with the command's
            version of Tilewright, the target's fingerprint, and the time limit of `--isolate` in
            seconds (0 for no limit).
        workload: the workload as JSON (`Workload.to_json`).
        configs: knob indices, int32 array of shape (n, knobs).
        steps: "lower", "measure" or "both". "measure" uses the programs of configs that this worker
            lowered recently. If the program of any config is missing, the batch is lowered again.

    Returns:
        A header and arrays of shape (n, …) in the format of `targets.worker`. If the worker cannot
        execute the call, for example because its version of Tilewright differs from the command's,
        the header contains the reason under the key `REFUSED`.
    """
    begin = time.perf_counter()
    try:
        result = target_of(target)
        described = Workload.from_json(workload)
        _check_configs(result, described, configs)
        header, arrays = _answer(result, described, np.ascontiguousarray(configs), steps)
    except TilewrightError as error:
        return {REFUSED: " ".join(str(error).split())}, {}
    plain = {name: _to_fixed_width(array) for name, array in arrays.items()}
    return header | {SECONDS: time.perf_counter() - begin}, plain


def check_version(command: Json) -> None:
    """Check that this process runs the command's version of Tilewright.

    Raises:
        ClusterError: the versions differ.
    """
    if command != version("tilewright"):
        raise ClusterError(
            f"it has Tilewright {version('tilewright')}, but the command has {command}; "
            "install the same version on both"
        )


class ProgramKeeper:
    """Wrapper of a target that keeps the programs of recently lowered configs in memory.

    The programs do not leave the process. If the program of a config is no longer kept, the whole
    batch is lowered again before it is measured.

    Args:
        target: the target.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kept: OrderedDict[tuple[str, bytes], tuple[Lowered, int]] = OrderedDict()
        self.name, self.fingerprint = target.name, target.fingerprint
        self.deterministic, self.capabilities = target.deterministic, target.capabilities
        self.space, self.hardware_features = target.space, target.hardware_features

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Compile a batch, and keep its programs for a later call of `measure`.

        Args:
            workload: the workload.
            configs: knob indices, shape (n, knobs).

        Returns:
            The lowered batch without its programs.
        """
        return replace(self._lower_configs(workload, configs), programs={})

    def measure(self, lowered: Lowered) -> Measurements:
        """Measure a batch with the programs that `lower` kept.

        If the program of any config is no longer kept, all configs of the batch are lowered again.
        Programs in the batch are ignored.

        Args:
            lowered: the batch.
        """
        workload, configs = lowered.workload, lowered.configs
        keys = [(workload.id, config.tobytes()) for config in configs]
        if not all(key in self._kept for key in keys):
            return self._target.measure(self._lower_configs(workload, configs))
        results = [self._kept[key] for key in keys]
        rows = [
            (np.array([at]), batch.rows(np.array([row]))) for at, (batch, row) in enumerate(results)
        ]
        return self._target.measure(joined_lowered(workload, configs, rows))

    def _lower_configs(self, workload: Workload, configs: Configs) -> Lowered:
        lowered = self._target.lower(workload, configs)
        for row, config in enumerate(configs):
            self._kept[workload.id, config.tobytes()] = lowered, row
        while len(self._kept) > _KEPT_ROWS:
            self._kept.popitem(last=False)
        return lowered


def rebuild_target(
    kind: str, preset: str, space: str, specification: Mapping[str, Json] | None = None
) -> Target:
    """Build a target from the description that a command sent, without reading a file.

    Args:
        kind: name of the target kind.
        preset: name of a preset; "" if there is a specification.
        space: name of the schedule space.
        specification: JSON description of the target; None if the target is a preset.

    Raises:
        TargetError: this machine does not have the target kind or the preset.
        TilewrightError: the target cannot be built.
    """
    if specification is not None:
        return rebuild(kind, specification, space)
    result = target_kinds().get(kind)
    if result is None or preset not in ("", *result.presets()):
        raise TargetError(f"it has no target '{preset}' of the kind '{kind}'")
    return result.make(preset, result.space_named(space))


def rebuild_warm(**about: Any) -> Target:
    """Build a target in an isolated process, and compile its kernels before a time limit applies.

    Args:
        **about: arguments of `rebuild_target`.
    """
    return ProgramKeeper(warmed_up(rebuild_target(**about)))


def prepare_worker(target: Mapping[str, Json]) -> None:
    """Build the target of a command on this worker, and load its kernels.

    Args:
        target: description of the target, as for `lower_and_measure`.
    """
    warmed_up(target_of(target))


def target_of(specification: Mapping[str, Json]) -> Target:
    """Return the target that this worker's thread uses for a command.

    Args:
        specification: description of the target that the command sent, as for `lower_and_measure`.

    Raises:
        ClusterError: the command has a different version of Tilewright, or its target has a
            different fingerprint.
        TilewrightError: the target cannot be built.
    """
    about = dict(specification)
    check_version(about.pop(VERSION))
    wanted = about.pop(FINGERPRINT)
    with _making:
        target = _target(json.dumps(about, sort_keys=True), threading.get_ident())
    if target.fingerprint != wanted:
        raise ClusterError(
            f"its target {target.name} has the fingerprint {target.fingerprint}, but the "
            f"command's target has {wanted}: it has other sources of Tilewright, or other "
            "hardware"
        )
    return target


@lru_cache(maxsize=64)
def _target(about_json: str, thread: int) -> Target:
    """Return the target that a worker's thread uses, and build it at the first call.

    Each thread has a target of its own, because a target with a time limit owns a process.

    Args:
        about_json: description of the target and its time limit, as JSON.
        thread: ID of the thread.
    """
    about: dict[str, Any] = json.loads(about_json)
    seconds = as_number(about.pop("isolate"))
    here = rebuild_target(**about)
    if not seconds:
        return ProgramKeeper(here)
    kind = kind_named(about["kind"])
    if kind.with_run_limit is not None:
        return ProgramKeeper(kind.with_run_limit(here, seconds))
    return IsolatedTarget(f"{__name__}:{rebuild_warm.__name__}", about, Limits(seconds))


def _answer(
    target: Target, workload: Workload, configs: Configs, steps: Steps
) -> tuple[Header, dict[str, NDArray[Any]]]:
    if steps == "measure":
        return {}, measured_reply(target.measure(_unlowered_batch(workload, configs)))
    at_once = capability(target, MeasuresInOnePass)
    if steps == "both" and at_once is not None:
        lowered, measured = at_once.lower_and_measure(workload, configs)
    else:
        lowered = target.lower(workload, configs)
    header, arrays = lowered_reply(lowered)
    if steps == "both":
        if at_once is None:
            measured = target.measure(lowered)
        arrays |= measured_reply(measured)
    return header, arrays


def _check_configs(target: Target, workload: Workload, configs: NDArray[Any]) -> None:
    """Check that configs are valid knob indices of the target's space.

    Args:
        target: the target.
        workload: the workload.
        configs: array that the caller sent, which may have any shape and type.

    Raises:
        ClusterError: the array is malformed, or a config lies outside the space.
    """
    sizes = target.space(workload).cardinalities
    fit = configs.dtype == np.int32 and configs.ndim == 2 and configs.shape[1] == len(sizes)
    if not fit or (configs < 0).any() or (configs >= sizes).any():
        raise ClusterError(f"{workload}: some configs are outside of the space of its target")


def _unlowered_batch(workload: Workload, configs: Configs) -> Lowered:
    texts = np.full(len(configs), "", dtype=object)
    return Lowered(workload, configs, texts, texts, Features.empty(len(configs)))


def _to_fixed_width(array: NDArray[Any]) -> NDArray[Any]:
    """Convert an object array of strings to a fixed-width string array; return others unchanged."""
    return array.astype(np.str_) if array.dtype.kind == "O" else array
