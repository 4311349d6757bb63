"""What a tuner knows before its first trial: nothing, or what the champion learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tasks import codecs
from tasks.champion import ChampionError, load_champion, registered
from tasks.rounds import empty_state
from tasks.session import emit, store
from tasks.store import Manifest
from tuning.study import Study

CHAMPION = "champion"


def begin(study: Study, warm_start: str) -> tuple[Study, Manifest]:
    """The memory to start from, and the study that starts there: another than one that starts from
    nothing, with trials of its own. Raises `ChampionError` if the champion does not fit."""
    if not warm_start:
        return study, empty_state()
    state = load_champion(study.target, study.space_name, study.workload, study.tuner)
    if state is None:
        emit("note", text=f"{study.workload}: no champion to start from")
        return study, empty_state()
    name = store().put(state, codecs.encode_state, ".zip")
    key = name.partition(".")[0][:32]
    return replace(study, start=key), Manifest("memory", key, files={"memory": name})


def check_champions(studies: Sequence[Study]) -> None:
    """Raises `ChampionError` unless one of the workloads has a champion."""
    if any(registered(s.target.name, s.space_name, s.workload) for s in studies):
        return
    first = studies[0]
    raise ChampionError(
        f"there is no champion for any of these workloads on {first.target.name}, space "
        f"{first.space_name}; 'tilewright compare' makes one, or leave out --warm-start"
    )
