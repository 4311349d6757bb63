"""Finds a schedule of a layer without trials: in a folder that `tilewright tune` wrote, among
baselines, or by the closed-form estimate."""

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
from tilewright.networks.offloading.pooling import together
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
"""Schedules that the estimate is asked about."""
MOST_VALUES = 1 << 31
"""Of a knob: configs are rows of int32."""
CLEARLY = 0.97
"""Of the baseline's cost: one measurement of each tells no less apart, and a rule keeps to caches,
which a whole network shares."""
LOWERED = 64
"""Of those the best, of which the first that compiles is taken."""


class PickError(TilewrightError):
    """Schedules that cannot be read, or are of another network or target."""


def read_picks(folder: Path, workloads: Sequence[Workload], target: Target) -> list[Pick]:
    """The schedules that a tuned folder holds for these workloads, whose epilogues are canonical.
    Raises `PickError` where it holds none, those of another target, or not all of them."""
    path = _path(folder)
    found = _read(path)
    spec = specification_of(target)
    if found.machine is not None and spec is not None and found.machine != _machine(spec):
        raise PickError(
            f"{path} holds schedules for {printable(found.target)}, which is another "
            f"machine than {target.name}; tune for this target, or build for that"
        )
    table = PickTable(traits_of(target).blocks)
    for workload, pick in found.schedules:
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
            f"{path} is of {printable(found.network)} and lacks {len(missing)} of the "
            f"{whole} workloads that are built, first {missing[0]} (epilogue "
            f"{missing[0].epilogue_text or 'none'}); tune this network with its "
            f"real epilogues{_hint(missing)}, or build with --trials"
        )
    return [known[workload] for workload in workloads]


class PickTable:
    """Schedules of workloads, found by others that the same schedules run."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self._own: dict[Workload, Pick] = {}
        self._exact: dict[Workload, Pick] = {}
        self._alike: dict[Workload, Pick] = {}

    def add(self, workload: Workload, pick: Pick) -> None:
        """The schedule that a workload was tuned to."""
        self._own[workload] = pick
        self._exact[_same_programs(workload, self.blocks)] = pick
        self._alike[_same_kinds(workload, self.blocks)] = pick

    def exact(self, workload: Workload) -> Pick | None:
        """That of a workload whose programs differ in immediates alone, None if there is none."""
        return self._own.get(workload) or self._exact.get(_same_programs(workload, self.blocks))

    def closest_match(self, workload: Workload) -> Pick | None:
        """That, or else one of a workload that the same schedules can run."""
        kinds = self._alike.get(_same_kinds(workload, self.blocks))
        kinds = kinds or self._alike.get(_same_kinds(_by_channel(workload), self.blocks))
        return self.exact(workload) or kinds


def pool_rule(folder: Path, target: Target) -> Callable[[Workload, Workload], Workload | None]:
    """Which max-pools are part of the convolution before them where a tuned folder says how layers
    run: those that were tuned so. Raises `PickError` where it holds no schedules."""
    traits = traits_of(target)
    blocks = traits.blocks
    tuned = {_same_kinds(workload, blocks) for workload, _ in _read(_path(folder)).schedules}

    def rule(convolution: Workload, pool: Workload) -> Workload | None:
        both = together(convolution, pool)
        if both is None:
            return None
        form = rounded_to_even(both) if traits.rounds_to_even else both
        forms = {_same_kinds(each, blocks) for each in (form, _by_channel(form))}
        return both if forms & tuned else None

    return rule


def _path(folder: Path) -> Path:
    return folder / SCHEDULES if folder.is_dir() else folder


def _same_programs(workload: Workload, blocks: Blocks) -> Workload:
    """Workloads that are equal in this have programs that differ in immediates alone."""
    return canonical(pad_to_blocks(workload, blocks))


def _same_kinds(workload: Workload, blocks: Blocks) -> Workload:
    """Workloads that are equal in this can be run by the same schedules. A float network, as it is
    tuned, does not say at which scale a residual comes or how large a bias is."""
    return pad_to_blocks(workload, blocks).with_each_step(lambda op: EpilogueOp(op.kind))


def _hint(missing: Sequence[Workload]) -> str:
    """Which option tunes what is shifted by channel."""
    own = any(op.kind == "shr_channel" for workload in missing for op in workload.epilogue)
    return " (--epilogue per-channel)" if own else ""


def _by_channel(workload: Workload) -> Workload:
    """The workload as it is where channels have their own shifts: what runs that by a schedule runs
    this by it, for it has fewer operands. Of a float network nobody knows where scales a channel
    will pay."""
    steps = [
        EpilogueOp("shr_channel") if op.kind == "shr" else op
        for op in workload.epilogue if op.kind not in ("offset", "bias")
    ]  # fmt: skip
    return workload.with_steps((EpilogueOp("bias"), *steps))


def pick_without_trials(
    workload: Workload, target: Target, seed: int = 0, tried: tuple[float, Pick] | None = None
) -> Pick:
    """The best of what costs no trial: the baseline, and what the estimate thinks best, if it is
    clearly faster where times are noisy; and of what was `tried`, with its cost. Raises
    `WorkloadError` for a workload without any schedule that runs."""
    candidates = [] if tried is None else [tried]
    estimated = _estimated(workload, target, seed)
    if (found := baseline_schedule(target, workload)) is not None:
        candidates.append((found.latency.cost, Pick(found.space.name, found.config)))
        worth = 1.0 if target.deterministic else CLEARLY
        if estimated is not None and estimated[0] > worth * found.latency.cost:
            estimated = None
    if estimated is not None:
        candidates.append(estimated)
    if not candidates:
        raise WorkloadError(
            f"{workload}: none of the schedules that were tried runs; build with more --trials"
        )
    return min(candidates, key=lambda candidate: candidate[0])[1]


def pick_rules(layers: Iterable[Workload], target: Target) -> dict[Workload, Pick]:
    """Return the schedules of kernels' own rules, which cost neither a compile nor a measurement.

    Workloads to which no rule applies are left out, and all are for a target without kernels.

    Measuring the layers of which the estimate promised half the time was tried: on 17 published
    networks, ResNet-18 and -50, MobileNet-v1 and -v2 it found seven, gained at most 0.8 % of a
    network, and lost on two (threads=1, a processor with AVX-512). It took up to 30 % of a build.
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
    """Some configs of a space, shape (configs, knobs), all where they are few; None of a listed
    one."""
    space = target.space(workload)
    if space.listed is not None:
        return None
    if space.size <= SAMPLED:
        return space.unravel(np.arange(space.size))
    return space.unravel(np.random.default_rng(seed).integers(0, space.size, SAMPLED))


def _estimated(workload: Workload, target: Target, seed: int) -> tuple[float, Pick] | None:
    """The best by the estimate of some that were drawn, if it compiles and runs, with its cost."""
    estimates = capability(target, Estimates)
    if estimates is None or (configs := _drawn(workload, target, seed)) is None:
        return None
    space = target.space(workload)
    estimated = estimates.estimate(workload, configs)
    order = np.lexsort((estimated.total("latency"), ~estimated.fits))
    best = configs[order[:LOWERED]]
    begin, some = 0, 1  # a compile may take a second: no more than needed
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
    """What a file of schedules holds. `machine` is what of its specification changes programs, None
    where the file says nothing of it; a workload for which nothing runs has no schedule."""

    network: str
    target: str
    machine: dict[str, Json] | None
    schedules: list[tuple[Workload, Pick | None]]


def _read(path: Path) -> _TunedSchedules:
    """Raises `PickError`."""
    try:
        found = as_object(read_json_file(path))
        if refusal := formats.SCHEDULES.refusal(path, found[formats.SCHEDULES.key]):
            raise PickError(refusal)
        target = as_object(found["target"])
        return _TunedSchedules(
            as_text(found["network"]),
            as_text(target["name"]),
            _machine(target["spec"]) if "spec" in target else None,
            [_schedule(as_object(row)) for row in as_list(found["schedules"])],
        )
    except FileNotFoundError:
        raise PickError(
            f"there is no {path}; name a folder that 'tilewright tune' wrote (--schedules)"
        ) from None
    except OSError as error:
        raise PickError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, WorkloadError):
        raise PickError(
            f"{path} holds no schedules; name a folder that 'tilewright tune' wrote (--schedules)"
        ) from None


def _schedule(row: Mapping[str, Json]) -> tuple[Workload, Pick | None]:
    """Raises `KeyError`, `ValueError` and `WorkloadError`."""
    workload = parse_workload(as_text(row["workload"]), as_text(row["epilogue"]))
    if row["config"] is None:
        return workload, None
    config = tuple(map(as_int, as_list(row["config"])))
    if any(not 0 <= index < MOST_VALUES for index in config):
        raise ValueError("no knob has that many values")
    return workload, Pick(as_text(row["space"]), config)


def _machine(spec: Json) -> dict[str, Json]:
    """What of a specification changes programs: not its name."""
    return {k: v for k, v in as_object(spec).items() if k not in ("name", "source")}
