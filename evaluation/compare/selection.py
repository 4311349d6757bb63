"""Which workloads a comparison is about: a network's, recorded tables', or given as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from evaluation.compare.test_bed import Named, TestBed, named, oracle_test_bed, recorded_test_bed
from services.home import use_home
from targets.errors import TilewrightError
from targets.registry import kind_of
from targets.vta.spec import VtaSpec
from targets.workload import Workload, parse_workload
from tuning.checks import check_source

ORACLE = "oracle"
"""Folder of enumerated spaces, below the home."""


class SelectionError(TilewrightError):
    """A choice of workloads that makes no sense."""


def recorded(files: Sequence[str], wanted: Sequence[str]) -> TestBed:
    """The tables in these files. Raises `SelectionError` or `TableError`."""
    test_bed = recorded_test_bed([Path(file) for file in files])
    return replace(test_bed, workloads=chosen(test_bed.workloads, wanted))


def enumerated(
    network: str | None,
    wanted: Sequence[str],
    target: str,
    space: str,
    live: bool,
    max_waste: float,
    console: Console,
) -> TestBed:
    """Workloads of a network, or those that `wanted` spells out, on a target. Says which of them
    the space does not offer. Raises a `TilewrightError`."""
    spec, name = VtaSpec.load(target), kind_of(target)[0].space_named(space)
    texts = [text for text in wanted if ":" in text]
    picks = [text for text in wanted if ":" not in text]
    known: Named = ()
    if network is not None and (picks or not texts):
        known = chosen(named(_layers(network, spec, max_waste)), picks)
    elif picks or not texts:
        raise SelectionError(
            "compare on what? give --network NAME, --replay TABLE, or --workloads "
            "'conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1'"
        )
    workloads = [workload for _, workload in known] + [parse_workload(text) for text in texts]
    workloads = list(dict.fromkeys(workloads))
    test_bed, left_out = oracle_test_bed(target, name, workloads, use_home().root / ORACLE, live)
    for text, reason in left_out.items():
        console.print(f"left out: {text}: {reason}", markup=False, highlight=False, soft_wrap=True)
    return test_bed


def chosen(known: Named, wanted: Sequence[str]) -> Named:
    """Those that `1,3-5`, names or ids pick, in the order of `known`; all if nothing is wanted.
    Raises `SelectionError`."""
    parts = [part.strip() for text in wanted for part in text.split(",") if part.strip()]
    if not parts:
        return known
    picked = {place for part in parts for place in _places(part, known)}
    return tuple(known[place] for place in sorted(picked))


def _places(part: str, known: Named) -> range:
    first, dash, last = part.partition("-")
    if first.isdecimal() and (last.isdecimal() or not dash):
        begin, end = int(first), int(last or first)
        if 1 <= begin <= end <= len(known):
            return range(begin - 1, end)
    for place, (name, workload) in enumerate(known):
        if part in (name, workload.id):
            return range(place, place + 1)
    names = ", ".join(f"{place}: {name}" for place, (name, _) in enumerate(known, 1))
    raise SelectionError(f"--workloads: there is no '{part}'; choose by place or name: {names}")


def _layers(network: str, spec: VtaSpec, max_waste: float) -> list[Workload]:
    check_source(network)
    from networks import load

    found = load(network).workloads(spec.block_in, spec.block_out, spec.batch, max_waste=max_waste)
    if not found:
        raise SelectionError(
            f"{network} has no layer for {spec.name}; 'tilewright inspect {network}' shows why"
        )
    return [workload for workload, _, _ in found]
