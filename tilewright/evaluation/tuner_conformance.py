"""Conformance checks for tuners. Authors can run them on their own tuners.

    from tilewright.evaluation.tuner_conformance import CHECKS

    for check in CHECKS.values():
        check(lambda: make_explorer("mine"))

The argument of a check is a function that creates the tuner. Each check raises `AssertionError`
with a message about the rule that the tuner breaks. The checks run on `ToyTarget`, whose lowering
and measurements take only microseconds.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.flows.tuning import tune
from tilewright.search.explorer import Explorer
from tilewright.search.rounds import Round
from tilewright.search.trial_store import TrialStore
from tilewright.targets.base import Configs, Knob, Lowered, Measurements, Ragged, Space
from tilewright.targets.capabilities import Estimates, offers
from tilewright.targets.features import Feature, Features
from tilewright.targets.workload import Workload

Mood = Literal["mixed", "all_invalid", "none_compiles", "one_valid", "all_valid", "all_equal"]
Make = Callable[[], Explorer]

WORKLOAD = Workload("conv2d", 1, 64, 16, 16, 64, kernel_h=3, kernel_w=3, pad_top=1, pad_left=1,
                    pad_bottom=1, pad_right=1)  # fmt: skip

HIDDEN = (Feature("area", "work"), Feature("bytes_moved", "bytes", "load"))
ESTIMATES = (
    Feature("cycles", "latency"),
    Feature("inp_bytes", "bytes", "load"),
    Feature("acc_share", "share"),
)


class ToyTarget:
    """A small simulated accelerator that the conformance checks tune for.

    It has everything that a tuner can use: configs that do not compile or fail at run time,
    features of the compiled program, and closed-form estimates.

    Args:
        mood: rule for which configs are valid. `mixed`: large tiles do not compile and very small
            tiles fail at run time. `all_invalid`: every config compiles and fails at run time.
            `none_compiles`: no config compiles. `one_valid`: every config compiles, but only the
            first config computes the right result. `all_valid`: every config is valid. `all_equal`:
            every config is valid and takes the same number of cycles.
        listed: flat indices of the configs in the space; None for the full space.
    """

    name = "toy"
    deterministic = True

    def __init__(self, mood: Mood = "mixed", listed: tuple[int, ...] | None = None) -> None:
        self.mood = mood
        self.listed = listed
        self.capabilities = offers(self, Estimates)

    @property
    def fingerprint(self) -> str:
        """Digest of the mood and the listed configs, which determine the target's results."""
        return f"toy-{self.mood}-{zlib.crc32(repr(self.listed).encode()):08x}"

    def hardware_features(self) -> dict[str, float]:
        """Return the only hardware feature, the size of the scratchpad."""
        return {"scratchpad": 64.0}

    def space(self, workload: Workload) -> Space:
        """Return a space of 150 configs with three tile sizes and the number of threads."""
        knobs = (
            Knob("tile_h", (1, 2, 4, 8, 16)), Knob("tile_w", (1, 2, 4, 8, 16)),
            Knob("tile_co", (1, 2, 4)), Knob("nthread", (1, 2)),
        )  # fmt: skip
        return Space("toy", knobs, self.listed)

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Lower configs. In the mood `mixed`, configs with large tiles fail to compile."""
        area, bytes_moved = self._sizes(workload, configs)
        broken = area > 96
        if self.mood == "none_compiles":
            broken = np.ones(len(configs), dtype=np.bool_)
        elif self.mood != "mixed":
            broken = np.zeros(len(configs), dtype=np.bool_)
        hidden = np.stack([area, bytes_moved], axis=1).astype(np.float64)
        hidden[broken] = np.nan
        return Lowered(
            workload, configs, np.where(broken, "ALLOC", "").astype(object),
            np.where(broken, "build: the tile does not fit", "").astype(object),
            Features(hidden, HIDDEN), {"tile": _tiles(area, ~broken)},
        )  # fmt: skip

    def measure(self, lowered: Lowered) -> Measurements:
        """Measure lowered configs.

        The mood decides which configs are valid, and whether all of them take the same time.
        """
        area, bytes_moved = self._sizes(lowered.workload, lowered.configs)
        status = np.where(lowered.ok, "valid", "compile_error").astype(object)
        if self.mood == "mixed":
            status[lowered.ok & (area < 3)] = "run_error"
        elif self.mood == "all_invalid":
            status[lowered.ok] = "run_error"
        elif self.mood == "one_valid":
            status[lowered.ok & (lowered.configs.sum(axis=1) > 0)] = "wrong_result"
        cycles = (1000 + 40_000 / area + bytes_moved).astype(np.int64)
        if self.mood == "all_equal":
            cycles[:] = 5000
        cycles = np.where(status == "valid", cycles, -1)
        seconds = np.where(cycles > 0, cycles / 1e8, np.nan)
        reason = np.where(status == "valid", "", "run: no response").astype(object)
        return Measurements(status, reason, cycles, seconds)

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        """Return the estimated latency, bytes moved and scratchpad share of each config."""
        area, bytes_moved = self._sizes(workload, configs)
        table = np.stack([900 + 45_000 / area, bytes_moved, area / 64], axis=1)
        return Features(table, ESTIMATES)

    def _sizes(
        self, workload: Workload, configs: Configs
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        values = self.space(workload).values(configs).astype(np.float64)
        area = values.prod(axis=1)
        halo = (values[:, 0] + 2) * (values[:, 1] + 2)
        return area, 8000 * halo / (values[:, 0] * values[:, 1]) / values[:, 2]


def _tiles(area: NDArray[np.float64], compiled: NDArray[np.bool_]) -> Ragged:
    """Return the programs of configs as a ragged array with one row per config.

    The row of a config contains the size of its tile. It is empty if the config did not compile.

    Args:
        area: size of each config's tile, shape (n,).
        compiled: True for configs that compiled, shape (n,).
    """
    sizes = area[compiled].astype(np.int64)
    return Ragged(sizes, np.concatenate([[0], np.cumsum(compiled)]).astype(np.int64))


def is_seeded(make: Make) -> None:
    """Check that equal seeds give equal trials, and that the tuner object keeps no state.

    Args:
        make: function that creates the tuner.
    """
    explorer = make()
    first = _trials(_run(explorer, trials=48, seed=3))
    assert first == _trials(_run(make(), trials=48, seed=3)), "the same seed gave different trials"
    assert first == _trials(_run(explorer, trials=48, seed=3)), (
        "a second run of the same object gave different trials, so it keeps state outside "
        "of ExplorerState"
    )


def never_repeats(make: Make) -> None:
    """Check that the tuner tries no config twice."""
    for mood in ("mixed", "all_equal"):
        rounds = _run(make(), ToyTarget(mood), trials=150, batch=15)
        flat = _flat(rounds)
        assert len(np.unique(flat)) == len(flat), f"a config was proposed twice ({mood})"


def respects_the_space(make: Make) -> None:
    """Check that all proposed configs lie in the space.

    One of the checked spaces contains only listed configs.

    Args:
        make: function that creates the tuner.
    """
    listed = tuple(range(0, 150, 3))
    rounds = _run(make(), ToyTarget(listed=listed), trials=40)
    assert set(_flat(rounds).tolist()) <= set(listed), (
        "a proposed config is not in the space's list"
    )
    for done in _run(make(), trials=40):
        limits = ToyTarget().space(WORKLOAD).cardinalities
        assert ((done.configs >= 0) & (done.configs < limits)).all(), (
            "a knob index is outside of the range of its knob"
        )


def keeps_the_batch(make: Make) -> None:
    """Check that each batch has at least one trial and no more trials than were requested."""
    for done in _run(make(), trials=60, batch=5):
        assert 1 <= len(done.configs) <= 5, f"{len(done.configs)} trials in a batch of 5"


def survives_failure(make: Make) -> None:
    """Check that tuning continues after rounds without a valid config.

    The check covers configs that do not compile and configs that fail at run time.
    """
    for mood in ("all_invalid", "none_compiles"):
        rounds = _run(make(), ToyTarget(mood), trials=150)
        assert rounds, f"the tuner stopped before the first round ({mood})"
        spent = sum(len(done.configs) + done.failed_compiles for done in rounds)
        assert spent >= 40, f"the tuner stopped after {spent} configs ({mood})"
        assert rounds[-1].best_latency is None, "a best config is reported although none is valid"


def copes_with_one_valid_point(make: Make) -> None:
    """Check that the tuner finds the only valid config if the budget covers the whole space.

    Args:
        make: function that creates the tuner.
    """
    rounds = _run(make(), ToyTarget("one_valid"), trials=150)
    assert rounds[-1].best_latency is not None, "the only valid config was not tried"


def stops_when_exhausted(make: Make) -> None:
    """Check that the tuner tries every config if the budget allows it, and then stops."""
    for mood in ("mixed", "all_valid"):
        rounds = _run(make(), ToyTarget(mood), trials=1000, batch=15)
        tried = sum(len(done.configs) + done.failed_compiles for done in rounds)
        assert tried == ToyTarget().space(WORKLOAD).size, (
            f"the tuner stopped after {tried} of {ToyTarget().space(WORKLOAD).size} configs "
            f"({mood})"
        )


def resumes(make: Make) -> None:
    """Check that a run that is stopped and resumed tries the same configs as if not stopped."""
    expected = _trials(_run(make(), trials=72))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.jsonl"
        for trials in (40, 72):
            with TrialStore(path) as store:
                rounds = list(
                    tune(ToyTarget(), WORKLOAD, make(), trials=trials, batch=8, store=store)
                )
    assert _trials(rounds) == expected, "a resumed run gave different trials"


CHECKS: dict[str, Callable[[Make], None]] = {
    check.__name__: check
    for check in (
        is_seeded, never_repeats, respects_the_space, keeps_the_batch, survives_failure,
        copes_with_one_valid_point, stops_when_exhausted, resumes,
    )
}  # fmt: skip


def _run(
    explorer: Explorer,
    target: ToyTarget | None = None,
    *,
    trials: int = 64,
    batch: int = 8,
    seed: int = 0,
) -> list[Round]:
    result = tune(target or ToyTarget(), WORKLOAD, explorer, trials=trials, batch=batch, seed=seed)
    return list(result)


def _flat(rounds: list[Round]) -> NDArray[np.int64]:
    return ToyTarget().space(WORKLOAD).ravel(np.concatenate([done.configs for done in rounds]))


def _trials(rounds: list[Round]) -> list[list[int]]:
    return [row for done in rounds for row in done.configs.tolist()]
