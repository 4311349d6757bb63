"""Lookup of schedules without a search: tuned before, from a rule, or by closed-form estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.core import formats
from tilewright.core.errors import TilewrightError, WorkloadError
from tilewright.core.files import Json, as_int, as_list, as_object, as_text, read_json_file
from tilewright.core.user_text import printable
from tilewright.networks.offloading.channel_blocks import pad_to_blocks
from tilewright.networks.offloading.pooling import fuse_pool
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Configs, Target
from tilewright.targets.capabilities import (
    Blocks,
    CompilesKernels,
    Estimates,
    baseline_schedule,
    capability,
    specification_of,
    traits_of,
)
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.rounding import rounded_to_even
from tilewright.targets.workload import Workload, canonical, parse_workload
from tilewright.tuning.output_dir import SCHEDULES

SAMPLED = 4096
"""Maximum number of configs for which closed-form estimates are computed."""
MOST_VALUES = 1 << 31
"""Limit on knob indices that are read from a file, because configs are int32."""
CLEARLY = 0.97
"""Largest ratio of an estimated schedule's measured latency to that of the baseline at which the
estimated schedule is chosen, on a target whose measurements vary. A single measurement of each
cannot resolve a smaller difference, and the baseline's rule takes account of caches that the whole
network shares."""
LOWERED = 64
"""Maximum number of configs, in the order of their estimates, that are lowered to find one that
compiles."""


class PickError(TilewrightError):
    """The schedules cannot be read, or they belong to another network or target."""


def read_picks(folder: Path, workloads: Sequence[Workload], target: Target) -> list[Pick]:
    """Read the schedules of the given workloads from a tuned folder.

    Args:
        folder: output directory of `tilewright tune`.
        workloads: workloads with canonical epilogues.
        target: the target.

    Returns:
        Schedules, one per workload, in the same order.

    Raises:
        PickError: the folder contains no schedules, lacks some of them, or was tuned for another
            target.
    """
    path = _path(folder)
    result = _read(path)
    spec = specification_of(target)
    if result.machine is not None and spec is not None and result.machine != _machine(spec):
        raise PickError(
            f"{path} contains schedules for another machine ({printable(result.target)}) than that "
            f"of this build ({target.name}): their specifications differ; tune for this target, or "
            "build for that one"
        )
    table = PickTable(traits_of(target).blocks)
    for workload, pick in result.schedules:
        if pick is not None:
            table.add(workload, pick)
    known: dict[Workload, Pick] = {}
    for workload in dict.fromkeys(workloads):
        closest_match = table.closest_match(workload)
        if closest_match is not None:
            known[workload] = closest_match
    missing = [workload for workload in dict.fromkeys(workloads) if workload not in known]
    if missing:
        whole = len(set(workloads))
        raise PickError(
            f"{path} was tuned for {printable(result.network)} and lacks schedules for "
            f"{len(missing)} of the {whole} workloads of this build; the first is "
            f"{missing[0]} (epilogue {missing[0].epilogue_text or 'none'}); tune this network "
            f"with its real epilogues{_hint(missing)}, or build with --trials"
        )
    return [known[workload] for workload in workloads]


class PickTable:
    """Table of tuned schedules by workload.

    A lookup also finds the schedule of a similar workload, if both workloads can use the same
    schedule.

    Args:
        blocks: sizes of the hardware's blocks, to which workloads are padded.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self._own: dict[Workload, Pick] = {}
        self._exact: dict[Workload, Pick] = {}
        self._alike: dict[Workload, Pick] = {}

    def add(self, workload: Workload, pick: Pick) -> None:
        """Add the schedule that was tuned for a workload.

        Args:
            workload: the workload.
            pick: its schedule.
        """
        self._own[workload] = pick
        self._exact[_same_programs(workload, self.blocks)] = pick
        self._alike[_same_kinds(workload, self.blocks)] = pick

    def exact(self, workload: Workload) -> Pick | None:
        """Return the schedule that was tuned for a workload with the same programs.

        Programs are considered the same if they differ only in immediates (constants within
        instructions).

        Args:
            workload: the workload.

        Returns:
            The schedule, or None if there is none.
        """
        return self._own.get(workload) or self._exact.get(_same_programs(workload, self.blocks))

    def closest_match(self, workload: Workload) -> Pick | None:
        """Return the schedule of a workload, or else that of a similar workload.

        A similar workload has the same shapes and the same types of epilogue operations, possibly
        with shifts per channel, so it can use the same schedules.

        Args:
            workload: the workload.

        Returns:
            The result of `exact` if there is one, else the schedule of the similar workload; None
            if there is neither.
        """
        kinds = self._alike.get(_same_kinds(workload, self.blocks))
        kinds = kinds or self._alike.get(_same_kinds(_by_channel(workload), self.blocks))
        return self.exact(workload) or kinds


def pool_rule(folder: Path, target: Target) -> Callable[[Workload, Workload], Workload | None]:
    """Return a function that merges max-pools into convolutions exactly where a tuned folder did.

    A schedule for a merged workload can be used only if the build merges the same layers.

    Args:
        folder: output directory of `tilewright tune`.
        target: the target.

    Returns:
        A function whose arguments are a convolution and a pool. It returns the merged workload, or
        None if the two stay separate.

    Raises:
        PickError: the folder contains no schedules.
    """
    traits = traits_of(target)
    blocks = traits.blocks
    tuned = {_same_kinds(workload, blocks) for workload, _ in _read(_path(folder)).schedules}

    def rule(convolution: Workload, pool: Workload) -> Workload | None:
        both = fuse_pool(convolution, pool)
        if both is None:
            return None
        form = rounded_to_even(both) if traits.rounds_to_even else both
        forms = {_same_kinds(item, blocks) for item in (form, _by_channel(form))}
        return both if forms & tuned else None

    return rule


def _path(folder: Path) -> Path:
    return folder / SCHEDULES if folder.is_dir() else folder


def _same_programs(workload: Workload, blocks: Blocks) -> Workload:
    """Return a key that is equal for workloads whose programs differ only in immediates.

    Immediates are constants within instructions.

    Args:
        workload: the workload.
        blocks: sizes of the hardware's blocks, to which workloads are padded.
    """
    return canonical(pad_to_blocks(workload, blocks))


def _same_kinds(workload: Workload, blocks: Blocks) -> Workload:
    """Return a key that is equal for workloads that can use the same schedules.

    Only the types of the epilogue operations are compared, not their constants. When a float
    network is tuned, for example, the scale of a residual and the values of a bias are not known
    yet.

    Args:
        workload: the workload.
        blocks: sizes of the hardware's blocks, to which workloads are padded.
    """
    return pad_to_blocks(workload, blocks).with_each_step(lambda op: EpilogueOp(op.kind))


def _hint(missing: Sequence[Workload]) -> str:
    """Return a hint for the error about missing schedules: the option with which to tune them."""
    own = any(op.kind == "shr_channel" for workload in missing for op in workload.epilogue)
    return " (--epilogue per-channel)" if own else ""


def _by_channel(workload: Workload) -> Workload:
    """Return the form of a workload that shifts each channel by its own amount.

    A schedule that can run this form can also run the original form, which has fewer operands. For
    a float network, it is not known in advance in which layers scales per channel are used.
    """
    steps = [
        EpilogueOp("shr_channel") if op.kind == "shr" else op
        for op in workload.epilogue if op.kind not in ("offset", "bias")
    ]  # fmt: skip
    return workload.with_steps((EpilogueOp("bias"), *steps))


def pick_without_trials(
    workload: Workload, target: Target, seed: int = 0, tried: tuple[float, Pick] | None = None
) -> Pick:
    """Choose the best schedule that needs no search.

    The candidates are the baseline, the best of random configs according to a closed-form estimate,
    and the best trial of a short tuning run, if it is given. If measurements vary, the estimated
    schedule must be clearly faster than the baseline (`CLEARLY`).

    Args:
        workload: the workload.
        target: the target.
        seed: seed of the random configs.
        tried: cost (latency in cycles, or in seconds if the target does not count cycles) and
            schedule of the best trial of a short tuning run, if there was one.

    Returns:
        The candidate with the lowest cost.

    Raises:
        WorkloadError: none of these schedules runs.
    """
    candidates = [] if tried is None else [tried]
    estimated = _estimated(workload, target, seed)
    if (schedule := baseline_schedule(target, workload)) is not None:
        candidates.append((schedule.latency.cost, Pick(schedule.space.name, schedule.config)))
        worth = 1.0 if target.deterministic else CLEARLY
        if estimated is not None and estimated[0] > worth * schedule.latency.cost:
            estimated = None
    if estimated is not None:
        candidates.append(estimated)
    if not candidates:
        raise WorkloadError(
            f"{workload}: none of the schedules that were tried runs; build with more --trials"
        )
    return min(candidates, key=lambda candidate: candidate[0])[1]


def pick_rules(layers: Iterable[Workload], target: Target) -> dict[Workload, Pick]:
    """Return the schedules that the kernels' built-in rules choose, without compiling or measuring.

    We also tried to measure the layers for which the estimate promised at most half of the rule's
    latency. On 17 published networks, ResNet-18 and -50, and MobileNet-v1 and -v2 (one thread, a
    processor with AVX-512), this found seven such layers, saved at most 0.8 % of a network's
    latency, and made two networks slower. It took up to 30 % of the build time.

    Args:
        layers: workloads of the layers.
        target: the target.

    Returns:
        Schedules by workload, without the workloads for which no rule applies. Empty if the target
        has no kernels.
    """
    compiles = capability(target, CompilesKernels)
    if compiles is None:
        return {}
    rules: dict[Workload, Pick] = {}
    for workload in dict.fromkeys(layers):
        try:
            config = compiles.rule(workload)
            compiles.kernel(workload, config)
        except WorkloadError:
            continue
        rules[workload] = Pick(target.space(workload).name, config)
    return rules


def _drawn(workload: Workload, target: Target, seed: int) -> Configs | None:
    """Draw random configs of a workload's space; a small space is returned completely.

    Args:
        workload: the workload.
        target: the target.
        seed: seed of the draw.

    Returns:
        Configs of shape (n, knobs), or None if the space is given as a list of configs.
    """
    space = target.space(workload)
    if space.listed is not None:
        return None
    if space.size <= SAMPLED:
        return space.unravel(np.arange(space.size))
    return space.unravel(np.random.default_rng(seed).integers(0, space.size, SAMPLED))


def _estimated(workload: Workload, target: Target, seed: int) -> tuple[float, Pick] | None:
    """Find the random config with the best closed-form estimate that compiles, and measure it.

    Args:
        workload: the workload.
        target: the target.
        seed: seed of the random configs.

    Returns:
        Its measured cost and its schedule. None if the target offers no estimates, if none of the
        best configs compiles, or if the config does not run.
    """
    estimates = capability(target, Estimates)
    if estimates is None or (configs := _drawn(workload, target, seed)) is None:
        return None
    space = target.space(workload)
    estimated = estimates.estimate(workload, configs)
    order = np.lexsort((estimated.total("latency"), ~estimated.fits))
    best = configs[order[:LOWERED]]
    begin, some = 0, 1  # one compilation may take a second, so start with a single config
    while begin < len(best):
        lowered = target.lower(workload, best[begin : begin + some])
        rows = np.flatnonzero(lowered.ok)
        if len(rows):
            measured = target.measure(lowered.rows(rows[:1]))
            config = tuple(int(index) for index in best[begin + rows[0]])
            cost = float(measured.latency[0])
            return (cost, Pick(space.name, config)) if measured.valid[0] else None
        begin, some = begin + some, 4 * some
    return None


@dataclass(frozen=True)
class _TunedSchedules:
    """Contents of a file of schedules.

    Attributes:
        network: name of the network.
        target: name of the target.
        machine: parts of the target's specification that affect programs, if the file contains
            them.
        schedules: pairs of a workload and its schedule, which is None if no schedule runs.
    """

    network: str
    target: str
    machine: dict[str, Json] | None
    schedules: list[tuple[Workload, Pick | None]]


def _read(path: Path) -> _TunedSchedules:
    """Read and parse a file of schedules.

    Raises:
        PickError: the file is missing, damaged or of an unsupported version.
    """
    try:
        result = as_object(read_json_file(path))
        if refusal := formats.SCHEDULES.refusal(path, result[formats.SCHEDULES.key]):
            raise PickError(refusal)
        target = as_object(result["target"])
        return _TunedSchedules(
            as_text(result["network"]),
            as_text(target["name"]),
            _machine(target["spec"]) if "spec" in target else None,
            [_schedule(as_object(row)) for row in as_list(result["schedules"])],
        )
    except FileNotFoundError:
        raise PickError(
            f"{path} does not exist; give an output directory of 'tilewright tune' with --schedules"
        ) from None
    except OSError as error:
        raise PickError(
            f"cannot read {path}: {error.strerror}; check the file and its permissions"
        ) from None
    except (ValueError, KeyError, WorkloadError):
        raise PickError(
            f"{path} contains no schedules; give an output directory of 'tilewright tune' "
            "with --schedules"
        ) from None


def _schedule(row: Mapping[str, Json]) -> tuple[Workload, Pick | None]:
    """Parse the entry of one workload in a file of schedules.

    Args:
        row: the entry.

    Returns:
        The workload, and its schedule or None if no schedule runs.

    Raises:
        KeyError: a value is missing.
        ValueError: a value is invalid.
        WorkloadError: the workload is invalid.
    """
    workload = parse_workload(as_text(row["workload"]), as_text(row["epilogue"]))
    if row["config"] is None:
        return workload, None
    config = tuple(map(as_int, as_list(row["config"])))
    if any(not 0 <= index < MOST_VALUES for index in config):
        raise ValueError("a knob index is larger than the number of values of its knob")
    return workload, Pick(as_text(row["space"]), config)


def _machine(spec: Json) -> dict[str, Json]:
    """Return the parts of a specification that affect programs: all but `name` and `source`."""
    return {k: v for k, v in as_object(spec).items() if k not in ("name", "source")}
