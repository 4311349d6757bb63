"""Plans the content of a dataset: hardware, workloads, and the number of rows for each pair.

The user names the hardware, or it is drawn at random with a seed. A plan depends only on its
options and on the version of Tilewright, except for properties that are measured on a processor.
The plan is made once and stored, so that a build that was stopped can resume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from tilewright.core.errors import TilewrightError, WorkloadError
from tilewright.core.files import Json, as_object, canonical, digest, read_json
from tilewright.core.formats import DATASET_PLAN
from tilewright.evaluation.datasets.options import DatasetOptions
from tilewright.networks import zoo
from tilewright.networks.offloading.accelerator import MAX_WASTE
from tilewright.networks.offloading.workloads import for_blocks
from tilewright.targets.base import Target
from tilewright.targets.capabilities import (
    specification_of,
    traits_of,
)
from tilewright.targets.registry import check_target, kind_of, make_target, rebuild, target_kinds
from tilewright.targets.rounding import rounded_to_even
from tilewright.targets.workload import Workload
from tilewright.tuning.network import extract_subgraphs, import_model
from tilewright.tuning.options import DEFAULTS


class DatasetError(TilewrightError):
    """Error for a dataset that cannot be built, read or evaluated."""


DRAWN, MEASURED = "vta", "cpu"
"""Types of targets that are used if the user names none. `DRAWN` has simulated cycles, `MEASURED`
has measured seconds."""
SIMULATED = (DRAWN, "gemmini")
"""Types of targets whose rows contain simulated cycles."""
_SPACES = {DRAWN: "extended", "gemmini": "", MEASURED: ""}


@dataclass(frozen=True)
class DatasetHardware:
    """A piece of hardware in the plan of a dataset.

    Attributes:
        id: fingerprint of the target.
        kind: type of the target, for example "vta".
        name: name of the target.
        features: hardware features at the time when the plan was made.
        specification: specification from which the target can be rebuilt.
        space: name of the schedule space.
    """

    id: str
    kind: str
    name: str
    features: dict[str, float]
    specification: dict[str, Any]
    space: str = ""


Found = list[tuple[DatasetHardware, Target]]


def check_targets(names: Sequence[str], rows: Mapping[str, int]) -> None:
    """Check that a dataset can contain rows of the named targets, without loading heavy modules.

    Args:
        names: names of the targets.
        rows: number of rows for each type of target.

    Raises:
        DatasetError: a type of target is not supported or gets no rows.
        UnknownName: a target does not exist.
        TilewrightError: a target cannot be built.
    """
    for name in names:
        kind = kind_of(name)[0].name
        if kind not in rows:
            raise DatasetError(
                f"{name} is a target of kind {kind}, for which rows cannot be built again; "
                f"choose targets of kind {' or '.join(rows)}"
            )
        if rows[kind] < 1:
            option = "--rows" if kind in SIMULATED else "--cpu-rows"
            raise DatasetError(
                f"{name} would get no rows; set {option} to 1 or more, or leave {name} out"
            )
        check_target(name)


def select_targets(names: Sequence[str], kind: str) -> Found:
    """Return the targets in `names` that are of type `kind`, in the given order.

    Args:
        names: names of targets of any type.
        kind: type of the targets to return, for example "vta".

    Returns:
        Pairs of the target's description for the plan, and the target.

    Raises:
        DatasetError: a target is named twice, or cannot be rebuilt from its specification.
        TilewrightError: a target cannot be built.
    """
    results: Found = []
    for name, target in _make_targets(names, kind):
        specification = specification_of(target)
        if specification is None:
            raise DatasetError(
                f"{name} has no specification from which it can be built again; choose another "
                "target"
            )
        hardware = _rebuild_target(kind, specification)
        if twin := next((other for other, _ in results if other.id == hardware[0].id), None):
            raise DatasetError(f"{name} is the same hardware as {twin.name}; name it once")
        results.append(hardware)
    return results


def check_unchanged(names: Sequence[str], hardware: Sequence[DatasetHardware]) -> None:
    """Check that the named targets still have the fingerprints that are recorded in a plan.

    Args:
        names: names of the targets.
        hardware: the hardware in the plan.

    Raises:
        DatasetError: a target has changed.
        TilewrightError: a target cannot be built.
    """
    known = {device.id for device in hardware}
    for kind in (*SIMULATED, MEASURED):
        for name, target in _make_targets(names, kind):
            if target.fingerprint not in known:
                raise DatasetError(
                    f"{name} has changed since this build was started; build again into "
                    "another folder"
                )


def _make_targets(names: Sequence[str], kind: str) -> Iterator[tuple[str, Target]]:
    for name in names:
        maker, rest = kind_of(name)
        if maker.name == kind:
            yield name, maker.make(rest, _SPACES[kind])


def draw_hardware(kind: str, count: int, seed: int) -> Found:
    """Draw different pieces of hardware of one type at random.

    Args:
        kind: type of the targets, for example "vta".
        count: number of pieces of hardware.
        seed: seed of the draw.

    Returns:
        Pairs of the target's description for the plan, and the target; empty if this machine cannot
        measure this type of target.
    """
    try:
        if kind == MEASURED:
            check_target(kind)  # raises if there is no C compiler
        specifications = target_kinds()[kind].variants(count, seed)
    except TilewrightError:
        return []
    return [_rebuild_target(kind, specification) for specification in specifications]


def _rebuild_target(kind: str, specification: Mapping[str, Json]) -> tuple[DatasetHardware, Target]:
    """Rebuild a target from its specification, and describe it for the plan of a dataset.

    Later, each part of a build rebuilds its target in the same way.

    Args:
        kind: type of the target, for example "vta".
        specification: specification of the target.

    Returns:
        The description for the plan, and the target.
    """
    target = rebuild(kind, specification, _SPACES[kind])
    said = specification_of(target)
    assert said is not None
    return DatasetHardware(
        target.fingerprint, kind, target.name, target.hardware_features(),
        dict(said), _SPACES[kind],
    ), target  # fmt: skip


CPU_WORKLOADS = 8
LEAST_ROWS = 16
"""Number of rows per pair of hardware and workload if there are too few rows for all pairs. Models
are evaluated on pairs of rows of the same task, so a task needs several rows."""
PART_ROWS = {"vta": 8192, "gemmini": 512, "cpu": 64}
"""Approximate number of rows per part, by type of target. If a build is stopped, the unfinished
part is measured again."""
MOST_ROWS = 1 << 30


def check_options(options: DatasetOptions) -> None:
    """Check the options of a dataset.

    Args:
        options: options of the dataset.

    Raises:
        DatasetError: the number of rows is invalid, or a target is not supported.
        TilewrightError: a target is invalid; see `check_targets`.
    """
    if not 1 <= options.rows + options.cpu_rows <= MOST_ROWS:
        raise DatasetError(
            f"a dataset of {options.rows} rows and {options.cpu_rows} rows of the CPU cannot "
            f"be built; choose 1 to {MOST_ROWS} rows"
        )
    rows = dict.fromkeys(SIMULATED, options.rows) | {MEASURED: options.cpu_rows}
    check_targets(options.targets, rows)


@dataclass(frozen=True)
class PlanCell:
    """Entry of a plan: the number of rows to measure for one workload on one piece of hardware.

    Attributes:
        workload: index of the workload in the plan.
        rows: number of rows.
    """

    workload: int
    rows: int


@dataclass(frozen=True)
class PlanPart:
    """Part of a plan: rows of one piece of hardware that are stored in one file.

    Attributes:
        hardware: index of the hardware in the plan.
        number: number of the part, counted from 0 for each piece of hardware.
        cells: number of rows for each workload of the part.
    """

    hardware: int
    number: int
    cells: tuple[PlanCell, ...]

    @property
    def rows(self) -> int:
        """Number of rows of the part, over all workloads."""
        return sum(cell.rows for cell in self.cells)


@dataclass(frozen=True)
class DatasetPlan:
    """Plan of a dataset: the hardware, the workloads, and how many rows of each pair to measure.

    Attributes:
        options: options of the dataset.
        tilewright: version of Tilewright that made the plan.
        hardware: the hardware.
        workloads: the workloads as JSON.
        parts: the parts to measure. Each part becomes a file.
    """

    options: DatasetOptions
    tilewright: str
    hardware: tuple[DatasetHardware, ...]
    workloads: tuple[dict[str, Any], ...]
    parts: tuple[PlanPart, ...]

    @property
    def rows(self) -> int:
        """Number of rows of all parts."""
        return sum(part.rows for part in self.parts)

    @cached_property
    def digest(self) -> str:
        """Digest of the plan. Equal plans give equal datasets, except for measured latencies."""
        return digest(canonical(self._body()))[:32]

    def workload(self, place: int) -> Workload:
        """Return a workload of the plan, in the form in which it was drawn.

        On a piece of hardware, `fit_workload` adapts it to the block sizes of that hardware.

        Args:
            place: index of the workload in `workloads`.
        """
        return Workload.from_json(self.workloads[place])

    def path(self, part: PlanPart) -> str:
        """Return the path of a part's file, relative to the folder of the dataset."""
        return f"rows/hardware={self.hardware[part.hardware].id}/part-{part.number:04d}.parquet"

    def to_json(self) -> bytes:
        """Serialise the plan for `from_json`."""
        return canonical({**self._body(), "version": DATASET_PLAN.written})

    def _body(self) -> dict[str, Json]:
        return asdict(self) | {"options": self.options.to_json()}

    @staticmethod
    def from_json(data: bytes) -> DatasetPlan:
        """Parse a plan that `to_json` wrote.

        Raises:
            ValueError: the content is damaged or has another version.
        """
        try:
            document = as_object(read_json(data))
            if why := DATASET_PLAN.mismatch("it", DATASET_PLAN.version_in(document)):
                raise ValueError(why)
            plan = _plans().validate_python(document)
            for part in plan.parts:
                _ = plan.hardware[part.hardware], [plan.workloads[c.workload] for c in part.cells]
            for place in range(len(plan.workloads)):
                plan.workload(place)
        except (ValidationError, LookupError, TypeError, WorkloadError, RecursionError) as error:
            raise ValueError(f"not the plan of a dataset: {error}") from None
        return plan


@cache
def _plans() -> TypeAdapter[DatasetPlan]:
    return TypeAdapter(DatasetPlan)


def make_plan(options: DatasetOptions) -> DatasetPlan:
    """Plan a dataset: choose the hardware, the workloads and the number of rows for each pair.

    Args:
        options: options of the dataset.

    Returns:
        The plan.

    Raises:
        DatasetError: the options are invalid, or there are not enough different schedules.
        TilewrightError: a target is invalid.
    """
    check_options(options)
    rng = np.random.default_rng([options.seed, 1])
    accelerators = [device for kind in SIMULATED for device in _hardware(options, kind)]
    cpu = _hardware(options, MEASURED) if options.cpu_rows else []
    shapes = _shapes_of(make_target(DEFAULTS.target)) if accelerators else []
    simulated = _draw_workloads(shapes, options.workloads, rng)
    measured = _draw_workloads(_shapes_of(cpu[0][1]), CPU_WORKLOADS, rng) if cpu else []
    workloads = [*simulated, *measured]
    cells = _cells(accelerators, list(enumerate(simulated)), options.rows, rng)
    own = list(enumerate(measured, len(simulated)))
    cells |= {
        (len(accelerators) + h, w): rows
        for (h, w), rows in _cells(cpu, own, options.cpu_rows, rng).items()
    }
    hardware = [item for item, _ in (*accelerators, *cpu)]
    parts = tuple(_parts(cells, hardware))
    wanted = options.rows if accelerators else 1
    if sum(part.rows for part in parts) < wanted:
        raise DatasetError(
            f"{len(hardware)} pieces of hardware and {options.workloads} workloads do not "
            f"have {wanted:,} different schedules; choose fewer rows, or more hardware or "
            "workloads"
        )
    return DatasetPlan(
        options, version("tilewright"), tuple(hardware),
        tuple(workload.to_json() for workload in workloads), parts,
    )  # fmt: skip


def fit_workload(workload: Workload, target: Target) -> Workload:
    """Adapt a workload to a target.

    Channels are padded to the target's blocks, and the rounding mode becomes the target's. A target
    that computes in float32 runs the workload unchanged.

    Args:
        workload: the workload, in the form that another target runs.
        target: the target.

    Returns:
        The adapted workload.
    """
    traits = traits_of(target)
    if "float32" in traits.dtypes:
        return workload
    if traits.rounds_to_even:
        workload = rounded_to_even(workload)
    return for_blocks(workload, traits.blocks)


def shape_of(workload: Workload) -> Workload:
    """Return a workload without its epilogue and with the number type int8.

    Workloads for which the result is equal have the same shape. What a model learns about one of
    them mostly applies to the others.

    Args:
        workload: the workload.
    """
    return replace(workload.with_steps(()), dtype="int8")


# -- drawing -----------------------------------------------------------------------------------


def _hardware(options: DatasetOptions, kind: str) -> Found:
    """Return the hardware of one type: the targets that the options name, or random ones.

    Args:
        options: options of the dataset. If they name no targets, the hardware is drawn.
        kind: type of the targets, for example "vta".

    Returns:
        Pairs of the target's description for the plan, and the target.
    """
    if options.targets:
        return select_targets(options.targets, kind)
    return draw_hardware(kind, options.specs, options.seed) if kind in (DRAWN, MEASURED) else []


def _shapes_of(target: Target) -> list[Workload]:
    """Return the workloads of all zoo networks on a target, one per shape, sorted by text."""
    shapes: dict[Workload, Workload] = {}
    for name in zoo.names():
        extracted = extract_subgraphs(import_model(name, {}), target, "full", MAX_WASTE, {})
        for subgraph in extracted.subgraphs:
            shapes.setdefault(shape_of(subgraph.workload), subgraph.workload)
    return sorted(shapes.values(), key=lambda workload: (str(workload), workload.id))


def _draw_workloads(
    workloads: Sequence[Workload], count: int, rng: np.random.Generator
) -> list[Workload]:
    kept = rng.permutation(len(workloads))[:count]
    return [workloads[place] for place in sorted(kept.tolist())]


def _cells(
    hardware: Sequence[tuple[DatasetHardware, Target]],
    workloads: Sequence[tuple[int, Workload]],
    rows: int,
    rng: np.random.Generator,
) -> dict[tuple[int, int], int]:
    """Divide rows among pairs of hardware and workload, as evenly as possible.

    If there are fewer than `LEAST_ROWS` rows per pair, only some pairs are drawn. More pairs are
    drawn if the search spaces of these pairs have too few configs. Pairs whose workload does not
    run on the hardware are skipped.

    Args:
        hardware: pairs of the target's description and the target.
        workloads: pairs of the workload's index in the plan and the workload.
        rows: number of rows to divide.
        rng: random generator.

    Returns:
        The number of rows, by the indices of hardware and workload. Their sum is smaller than
        `rows` if all spaces together have fewer configs.
    """
    pairs = [(h, w) for h in range(len(hardware)) for w in range(len(workloads))]
    wanted, known = max(1, rows // LEAST_ROWS), 0
    sizes: dict[tuple[int, int], int] = {}
    for place in rng.permutation(len(pairs)).tolist():
        h, w = pairs[place]
        if len(sizes) >= wanted and known >= rows:
            break
        target, (number, workload) = hardware[h][1], workloads[w]
        try:
            sizes[h, number] = target.space(fit_workload(workload, target)).size
        except WorkloadError:  # the hardware cannot run the workload
            continue
        known += sizes[h, number]
    return dict(_shared_out(sizes, rows))


def _shared_out(
    sizes: Mapping[tuple[int, int], int], rows: int
) -> Iterator[tuple[tuple[int, int], int]]:
    """Divide rows evenly among search spaces.

    A space with fewer configs than an even share gets one row per config. The rows that it leaves
    go to the larger spaces.

    Args:
        sizes: number of configs of each space, by the indices of hardware and workload.
        rows: number of rows to divide.

    Yields:
        The indices of hardware and workload, and the number of rows.
    """
    share: dict[tuple[int, int], int] = {}
    left, cells = rows, len(sizes)
    for place, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
        share[place] = min(size, -(-left // cells))
        left, cells = left - share[place], cells - 1
    yield from ((place, count) for place, count in sorted(share.items()) if count)


def _parts(
    cells: Mapping[tuple[int, int], int], hardware: Sequence[DatasetHardware]
) -> Iterator[PlanPart]:
    """Group the rows of each piece of hardware into parts of at least `PART_ROWS` rows.

    The last part of a piece of hardware may be smaller.

    Args:
        cells: number of rows, by the indices of hardware and workload.
        hardware: the hardware of the plan.

    Yields:
        The parts, ordered by hardware.
    """
    for h, device in enumerate(hardware):
        limit = PART_ROWS[device.kind]
        number, held = 0, list[PlanCell]()
        for (place, workload), rows in cells.items():
            if place != h:
                continue
            held.append(PlanCell(workload, rows))
            if sum(cell.rows for cell in held) >= limit:
                yield PlanPart(h, number, tuple(held))
                number, held = number + 1, []
        if held:
            yield PlanPart(h, number, tuple(held))
