"""Steps of a comparison on networks other than the tuning runs themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.core import formats
from tilewright.core.errors import TilewrightError
from tilewright.core.files import write_atomically
from tilewright.evaluation.compare.leaderboard import Leaderboard, network_leaderboards
from tilewright.evaluation.compare.network_plan import NetworkJob, NetworksPlan
from tilewright.evaluation.compare.network_runs import (
    KeptNetworkRuns,
    NetworkRun,
    RunTuned,
)
from tilewright.evaluation.compare.plan import ComparisonBegan
from tilewright.evaluation.compare.record import FILES, to_json
from tilewright.flows.tuning import import_network
from tilewright.search import LocalRunner
from tilewright.search.events import Listener
from tilewright.tuning.outputs import Summary
from tilewright.tuning.tuning_task import target_of


class ComparisonError(TilewrightError):
    """Error for a comparison on networks in which the results of a run are missing."""


@dataclass(frozen=True)
class NetworkComparison:
    """A finished comparison on networks.

    Attributes:
        plan: the plan of the comparison.
        runs: results of the runs, in the order of the plan.
        leaderboards: one leaderboard per network and target.
    """

    plan: NetworksPlan
    runs: tuple[NetworkRun, ...]
    leaderboards: tuple[Leaderboard, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the content of `comparison.json`. Other programs rely on its keys."""
        return {
            "version": formats.COMPARISON.written,
            "trials": self.plan.options.trials,
            "runs": [asdict(run) for run in self.runs],
            "leaderboards": to_json(self.leaderboards),
        }


def read_networks(jobs: Sequence[NetworkJob]) -> None:
    """Import each network for each target, so that errors appear before anything is measured.

    Args:
        jobs: the runs.

    Raises:
        TilewrightError: a network cannot be imported; see `flows.tuning.import_network`.
    """
    for job in {(job.network, job.target): job for job in jobs}.values():
        import_network(LocalRunner(), job.options, target_of(job.options))


def log_networks_began(plan: NetworksPlan, kept: int, emit: Listener) -> None:
    """Emit an event with the number of runs and the number of runs that are already finished.

    Args:
        plan: the plan of the comparison.
        kept: number of finished runs.
        emit: function that is called with the event.
    """
    emit(ComparisonBegan(kept, len(plan.jobs)))


def keep_run(kept: KeptNetworkRuns, job: NetworkJob, summary: Summary, emit: Listener) -> None:
    """Store the result of a finished tuning run on disk, and emit an event about it.

    Args:
        kept: the stored runs, to which the result is added.
        job: the run.
        summary: content of the run's `summary.json`.
        emit: function that is called with the event.

    Raises:
        OSError: the result cannot be written.
    """
    emit(RunTuned(kept.add(job, summary)))


def judge_networks(plan: NetworksPlan, kept: KeptNetworkRuns) -> NetworkComparison:
    """Compute the leaderboards of a comparison on networks from its stored runs.

    Args:
        plan: the plan of the comparison.
        kept: the stored runs.

    Returns:
        The finished comparison.

    Raises:
        ComparisonError: the results of a run are missing.
    """
    networks = []
    for job in plan.jobs:
        run = kept.find(job)
        if run is None:
            raise ComparisonError(
                f"the results of {job.title} were removed from {job.options.folder} or "
                "replaced by another run; repeat the command to run it again"
            )
        networks.append(run)
    return NetworkComparison(plan, tuple(networks), network_leaderboards(networks))


def log_networks(compared: NetworkComparison, folder: Path) -> None:
    """Write the results of a comparison to `comparison.json` and to its copy `sweep.json`.

    Programs that read the format of version 0.2 need the copy.

    Args:
        compared: the results.
        folder: output directory of the comparison.

    Raises:
        OSError: a file cannot be written.
    """
    text = json.dumps(compared.to_json(), indent=2, ensure_ascii=False) + "\n"
    for name in FILES:
        write_atomically(folder / name, text.encode())
