"""Selects the workloads of a comparison: layers of a network, recorded tables, or texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.evaluation.compare.benchmark_suite import (
    EnumeratedTestBed,
    Named,
    RecordedTestBed,
    TestBed,
    enumerated_test_bed,
    name_workloads,
    recorded_test_bed,
)
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.networks import load
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.targets import Target, make_target
from tilewright.targets.registry import kind_of
from tilewright.targets.workload import Workload, parse_workload
from tilewright.tuning.preflight import check_source


class SelectionError(TilewrightError):
    """Error for an invalid selection of workloads."""


def test_bed_of(options: CompareOptions, tables: Path) -> tuple[TestBed, dict[str, str]]:
    """Create the test bed that the options of a comparison on workloads describe.

    Args:
        options: options of the comparison.
        tables: folder of the tables with complete measurements of search spaces.

    Returns:
        The test bed, and the reason for each omitted workload, by the workload's name.

    Raises:
        TilewrightError: see `recorded` and `make_test_bed`.
    """
    if options.replay:
        return recorded(options.replay, options.workloads), {}
    return make_test_bed(
        options.network or None, options.workloads, options.target, options.space, options.live,
        options.max_waste, tables,
    )  # fmt: skip


def recorded(files: Sequence[str], wanted: Sequence[str]) -> RecordedTestBed:
    """Create a test bed from tables of measurements that were recorded on hardware.

    Args:
        files: paths of the tables, one per workload.
        wanted: positions, names or IDs of workloads; see `select_workloads`.

    Returns:
        The test bed, which contains only the selected workloads.

    Raises:
        SelectionError: the selection is invalid.
        TableError: a file is not a table.
    """
    test_bed = recorded_test_bed([Path(file) for file in files])
    return replace(test_bed, workloads=select_workloads(test_bed.workloads, wanted))


def make_test_bed(
    network: str | None, wanted: Sequence[str], target: str, space: str, live: bool,
    max_waste: float, tables: Path,
) -> tuple[EnumeratedTestBed, dict[str, str]]:  # fmt: skip
    """Create a test bed with workloads of a network, or with workloads that are given as text.

    Args:
        network: name or file of the network; None if all workloads are given as text.
        wanted: positions, names or IDs of the network's workloads (see `select_workloads`), or
            texts such as `conv2d:n=1,c=64,…`.
        target: name of the target.
        space: name of the schedule space.
        live: run tuners on the target itself, so that their durations include lowering and
            simulation.
        max_waste: a layer is included only if at most this fraction of its multiplications are with
            padding zeros.
        tables: folder of the tables with complete measurements of search spaces.

    Returns:
        The test bed, and the reason for each workload that has no schedule in the space, by name.

    Raises:
        SelectionError: the selection is invalid.
        WorkloadError: none of the workloads has a schedule in the space.
        UnknownName: the network or the target does not exist.
        TilewrightError: the network or the target's specification cannot be read.
    """
    name = kind_of(target)[0].space_named(space)
    workloads = _workloads(network, wanted, make_target(target, name), max_waste)
    return enumerated_test_bed(target, name, workloads, tables, live)


def select_workloads(known: Named, wanted: Sequence[str]) -> Named:
    """Select workloads by positions such as `1,3-5`, by names or by IDs.

    Args:
        known: the workloads with their names.
        wanted: the selection; empty for all workloads. Positions count from 1.

    Returns:
        The selected workloads, in the order of `known`.

    Raises:
        SelectionError: a position, name or ID does not exist.
    """
    parts = [part.strip() for text in wanted for part in text.split(",") if part.strip()]
    if not parts:
        return known
    picked = {place for part in parts for place in _parse_positions(part, known)}
    return tuple(known[place] for place in sorted(picked))


def _parse_positions(part: str, known: Named) -> range:
    first, dash, last = part.partition("-")
    if first.isdecimal() and (last.isdecimal() or not dash):
        begin, end = int(first), int(last or first)
        if 1 <= begin <= end <= len(known):
            return range(begin - 1, end)
    for place, (name, workload) in enumerate(known):
        if part in (name, workload.id):
            return range(place, place + 1)
    names = ", ".join(f"{place}: {name}" for place, (name, _) in enumerate(known, 1))
    raise SelectionError(
        f"--workloads: the workload '{part}' does not exist; choose by position or name: {names}"
    )


def _workloads(
    network: str | None, wanted: Sequence[str], target: Target, max_waste: float
) -> list[Workload]:
    """Return the selected workloads of a network and the workloads given as text, each once.

    Args:
        network: name or file of the network; None if all workloads are given as text.
        wanted: positions, names or IDs of the network's workloads, or texts of workloads. A text
            contains a colon. Without any of them, all workloads of the network are returned.
        target: the target.
        max_waste: a layer is included only if at most this fraction of its multiplications are with
            padding zeros.

    Raises:
        SelectionError: no network and no workload is given, or the selection is invalid.
    """
    texts = [text for text in wanted if ":" in text]
    picks = [text for text in wanted if ":" not in text]
    known: Named = ()
    if network is not None and (picks or not texts):
        known = select_workloads(name_workloads(_layers(network, target, max_waste)), picks)
    elif picks or not texts:
        raise SelectionError(
            "no workloads to compare on were given; add --network NAME, --replay TABLE, or "
            "--workloads 'conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1'"
        )
    workloads = [workload for _, workload in known] + [parse_workload(text) for text in texts]
    return list(dict.fromkeys(workloads))


def _layers(network: str, target: Target, max_waste: float) -> list[Workload]:
    check_source(network)
    workloads = load(network).workloads_on(Accelerator.for_target(target, max_waste=max_waste))
    if not workloads:
        raise SelectionError(
            f"no layer of {network} can run on {target.name}; 'tilewright inspect {network}' "
            "shows the reasons"
        )
    return [workload for workload, _, _ in workloads]
