"""Gives what a tuner knows before its first trial: nothing, or what the champion learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.core.files import digest
from tilewright.search import ExplorerState
from tilewright.tasks import codecs
from tilewright.tasks.champion_registry import ChampionError, load_champion, registered
from tilewright.tuning.tuning_task import TuningTask


def champion_state(study: TuningTask) -> tuple[TuningTask, ExplorerState] | None:
    """The champion's state, and the study that starts there: another than one that starts from
    nothing, with trials of its own. None if there is no champion. Raises `ChampionError` if it does
    not fit."""
    state = load_champion(study.target, study.space_name, study.workload, study.tuner)
    if state is None:
        return None
    return replace(study, start=digest(codecs.encode_state(state))[:32]), state


def check_champions(studies: Sequence[TuningTask]) -> None:
    """Raises `ChampionError` unless one of the workloads has a champion."""
    if any(registered(s.target.name, s.space_name, s.workload) for s in studies):
        return
    first = studies[0]
    raise ChampionError(
        f"there is no champion for any of these workloads on {first.target.name}, space "
        f"{first.space_name}; 'tilewright compare' makes one, or leave out --warm-start"
    )
