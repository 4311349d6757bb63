"""Plans what a dataset is to hold: which hardware, which workloads, and how many rows of each pair.

Hardware is drawn by a seed, or named by the caller. A plan depends on its options and this program
alone, but for what is measured of a processor. It is made once and kept, so that a build that was
stopped resumes with it.
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
    """A dataset that cannot be built, read or judged as asked."""


DRAWN, MEASURED = "vta", "cpu"
"""The kinds of targets that are drawn where none is named: rows in cycles that are simulated, and
in seconds that are measured."""
SIMULATED = (DRAWN, "gemmini")
"""All kinds whose rows are in simulated cycles."""
_SPACES = {DRAWN: "extended", "gemmini": "", MEASURED: ""}


@dataclass(frozen=True)
class DatasetHardware:
    """A piece of hardware: `id` and `fingerprint` are its target's, `features` as
    `Target.hardware_features` gave them when the plan was made."""

    id: str
    kind: str
    name: str
    features: dict[str, float]
    specification: dict[str, Any]
    space: str = ""


Found = list[tuple[DatasetHardware, Target]]


def check_targets(names: Sequence[str], rows: Mapping[str, int]) -> None:
    """Whether a dataset of so many `rows` by kind can be of the targets of these names; nothing
    heavy is loaded. Raises `DatasetError`, `UnknownName`, or an error of a target's kind."""
    for name in names:
        kind = kind_of(name)[0].name
        if kind not in rows:
            raise DatasetError(
                f"{name} is a target of kind {kind}, of which a build cannot make rows again; name "
                f"targets of kind {' or '.join(rows)}"
            )
        if rows[kind] < 1:
            option = "--rows" if kind in SIMULATED else "--cpu-rows"
            raise DatasetError(f"{name} gets no rows; give {option} 1 or more, or leave it out")
        check_target(name)


def named(names: Sequence[str], kind: str) -> Found:
    """Those of a kind among the targets of these names, in this order. Raises `DatasetError` for
    one that is named twice, and as `targets.registry.make_target`."""
    found: Found = []
    for name, target in _made(names, kind):
        specification = specification_of(target)
        if specification is None:
            raise DatasetError(f"{name} has no specification to build it again by; name another")
        each = _known(kind, specification)
        if twin := next((other for other, _ in found if other.id == each[0].id), None):
            raise DatasetError(f"{name} is the same hardware as {twin.name}; name it once")
        found.append(each)
    return found


def check_unchanged(names: Sequence[str], hardware: Sequence[DatasetHardware]) -> None:
    """Raises `DatasetError` where a name stands for something else than when `hardware` was
    planned by it, and what `named` does."""
    known = {each.id for each in hardware}
    for kind in (*SIMULATED, MEASURED):
        for name, target in _made(names, kind):
            if target.fingerprint not in known:
                raise DatasetError(
                    f"{name} no longer is what it was when this build began; build again into "
                    "another folder"
                )


def _made(names: Sequence[str], kind: str) -> Iterator[tuple[str, Target]]:
    for name in names:
        maker, rest = kind_of(name)
        if maker.name == kind:
            yield name, maker.make(rest, _SPACES[kind])


def drawn(kind: str, count: int, seed: int) -> Found:
    """Different pieces of hardware of a kind; none where this machine cannot measure it."""
    try:
        if kind == MEASURED:
            check_target(kind)  # there may be no compiler
        specifications = target_kinds()[kind].variants(count, seed)
    except TilewrightError:
        return []
    return [_known(kind, specification) for specification in specifications]


def _known(kind: str, specification: Mapping[str, Json]) -> tuple[DatasetHardware, Target]:
    """The hardware that is built again by a specification, as every part of a build does."""
    target = rebuild(kind, specification, _SPACES[kind])
    said = specification_of(target)
    assert said is not None
    return DatasetHardware(
        target.fingerprint, kind, target.name, target.hardware_features(),
        dict(said), _SPACES[kind],
    ), target  # fmt: skip


CPU_WORKLOADS = 8
LEAST_ROWS = 16
"""Of a cell, where there are fewer rows than cells need: pairs within a task are what is judged."""
PART_ROWS = {"vta": 8192, "gemmini": 512, "cpu": 64}
"""About so many rows are made, written and lost at a time, by kind."""
MOST_ROWS = 1 << 30


def check_options(options: DatasetOptions) -> None:
    """Check what a dataset is to hold.

    Raises:
        DatasetError: the options make no dataset, or a named target is wrong
            (`check_targets`).
    """
    if not 1 <= options.rows + options.cpu_rows <= MOST_ROWS:
        raise DatasetError(
            f"a dataset of {options.rows} rows and {options.cpu_rows} of the processor cannot be "
            f"built; ask for 1 to {MOST_ROWS} rows"
        )
    rows = dict.fromkeys(SIMULATED, options.rows) | {MEASURED: options.cpu_rows}
    check_targets(options.targets, rows)


@dataclass(frozen=True)
class PlanCell:
    """So many rows of a workload, by its place in the plan."""

    workload: int
    rows: int


@dataclass(frozen=True)
class PlanPart:
    """Cells of one piece of hardware that are made and kept together, as the file `path`."""

    hardware: int
    number: int
    cells: tuple[PlanCell, ...]

    @property
    def rows(self) -> int:
        """Of all its cells."""
        return sum(cell.rows for cell in self.cells)


@dataclass(frozen=True)
class DatasetPlan:
    """All there is to make."""

    options: DatasetOptions
    tilewright: str
    hardware: tuple[DatasetHardware, ...]
    workloads: tuple[dict[str, Any], ...]
    parts: tuple[PlanPart, ...]

    @property
    def rows(self) -> int:
        """Of all parts."""
        return sum(part.rows for part in self.parts)

    @cached_property
    def digest(self) -> str:
        """Content hash: equal plans make equal datasets, but for what is measured."""
        return digest(canonical(self._body()))[:32]

    def workload(self, place: int) -> Workload:
        """As the network has it, for the usual accelerator."""
        return Workload.from_json(self.workloads[place])

    def path(self, part: PlanPart) -> str:
        """Of a part's file, from the dataset's folder."""
        return f"rows/hardware={self.hardware[part.hardware].id}/part-{part.number:04d}.parquet"

    def to_json(self) -> bytes:
        """What `from_json` reads."""
        return canonical({**self._body(), "version": DATASET_PLAN.written})

    def _body(self) -> dict[str, Json]:
        return asdict(self) | {"options": self.options.to_json()}

    @staticmethod
    def from_json(data: bytes) -> DatasetPlan:
        """Raises `ValueError` for what `to_json` did not write, and for another version."""
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
            raise ValueError(f"no plan of a dataset: {error}") from None
        return plan


@cache
def _plans() -> TypeAdapter[DatasetPlan]:
    return TypeAdapter(DatasetPlan)


def make_plan(options: DatasetOptions) -> DatasetPlan:
    """Draw hardware, unless it is named, workloads and cells. Raises `DatasetError`, and what
    `DatasetOptions.check` does."""
    check_options(options)
    rng = np.random.default_rng([options.seed, 1])
    accelerators = [each for kind in SIMULATED for each in _hardware(options, kind)]
    cpu = _hardware(options, MEASURED) if options.cpu_rows else []
    shapes = _shapes_of(make_target(DEFAULTS.target)) if accelerators else []
    simulated = _drawn(shapes, options.workloads, rng)
    measured = _drawn(_shapes_of(cpu[0][1]), CPU_WORKLOADS, rng) if cpu else []
    workloads = [*simulated, *measured]
    cells = _cells(accelerators, list(enumerate(simulated)), options.rows, rng)
    own = list(enumerate(measured, len(simulated)))
    cells |= {
        (len(accelerators) + h, w): rows
        for (h, w), rows in _cells(cpu, own, options.cpu_rows, rng).items()
    }
    hardware = [each for each, _ in (*accelerators, *cpu)]
    parts = tuple(_parts(cells, hardware))
    wanted = options.rows if accelerators else 1
    if sum(part.rows for part in parts) < wanted:
        raise DatasetError(
            f"{len(hardware)} pieces of hardware and {options.workloads} workloads have no "
            f"{wanted:,} different schedules; ask for fewer rows, or for more of these"
        )
    return DatasetPlan(
        options, version("tilewright"), tuple(hardware),
        tuple(each.to_json() for each in workloads), parts,
    )  # fmt: skip


def fitted(workload: Workload, target: Target) -> Workload:
    """The workload as the target gets it: padded to its blocks, if it has any, and rounded as it
    rounds."""
    traits = traits_of(target)
    if "float32" in traits.dtypes:
        return workload
    if traits.rounds_to_even:
        workload = rounded_to_even(workload)
    return for_blocks(workload, traits.blocks)


def shape_of(workload: Workload) -> Workload:
    """What workloads have in common that differ in what is done to their sums, or in the numbers
    they compute with: who knows one knows most of the others."""
    return replace(workload.with_steps(()), dtype="int8")


# -- drawing -----------------------------------------------------------------------------------


def _hardware(options: DatasetOptions, kind: str) -> Found:
    """What is named of a kind, or drawn."""
    if options.targets:
        return named(options.targets, kind)
    return drawn(kind, options.specs, options.seed) if kind in (DRAWN, MEASURED) else []


def _shapes_of(target: Target) -> list[Workload]:
    """The workloads that built-in networks have on a target by default, one a shape, in the order
    of their text."""
    found: dict[Workload, Workload] = {}
    for name in zoo.names():
        extracted = extract_subgraphs(import_model(name, {}), target, "full", MAX_WASTE, {})
        for each in extracted.subgraphs:
            found.setdefault(shape_of(each.workload), each.workload)
    return sorted(found.values(), key=lambda workload: (str(workload), workload.id))


def _drawn(found: Sequence[Workload], count: int, rng: np.random.Generator) -> list[Workload]:
    kept = rng.permutation(len(found))[:count]
    return [found[place] for place in sorted(kept.tolist())]


def _cells(
    hardware: Sequence[tuple[DatasetHardware, Target]],
    workloads: Sequence[tuple[int, Workload]],
    rows: int,
    rng: np.random.Generator,
) -> dict[tuple[int, int], int]:
    """Rows by place of hardware and of workload: as even as the sizes of the spaces allow."""
    pairs = [(h, w) for h in range(len(hardware)) for w in range(len(workloads))]
    wanted, known = max(1, rows // LEAST_ROWS), 0
    sizes: dict[tuple[int, int], int] = {}
    for place in rng.permutation(len(pairs)).tolist():
        h, w = pairs[place]
        if len(sizes) >= wanted and known >= rows:
            break
        target, (number, workload) = hardware[h][1], workloads[w]
        try:
            sizes[h, number] = target.space(fitted(workload, target)).size
        except WorkloadError:  # it cannot run there
            continue
        known += sizes[h, number]
    return dict(_shared_out(sizes, rows))


def _shared_out(
    sizes: Mapping[tuple[int, int], int], rows: int
) -> Iterator[tuple[tuple[int, int], int]]:
    """Equal shares, small spaces whole and the rest to the larger ones; in the order of places."""
    share: dict[tuple[int, int], int] = {}
    left, cells = rows, len(sizes)
    for place, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
        share[place] = min(size, -(-left // cells))
        left, cells = left - share[place], cells - 1
    yield from ((place, count) for place, count in sorted(share.items()) if count)


def _parts(
    cells: Mapping[tuple[int, int], int], hardware: Sequence[DatasetHardware]
) -> Iterator[PlanPart]:
    for h, each in enumerate(hardware):
        limit = PART_ROWS[each.kind]
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
