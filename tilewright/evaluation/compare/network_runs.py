"""Results of a comparison's runs on networks, which are stored as soon as a run finishes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.evaluation.compare.network_plan import NetworkJob, NetworksPlan, run_title
from tilewright.evaluation.row_cache import RUNS, RowCache
from tilewright.search.events import Event
from tilewright.tuning.gains import RULE, four_figures
from tilewright.tuning.outputs import Summary
from tilewright.tuning.run_metadata import is_complete, read_run


@dataclass(frozen=True)
class NetworkRun:
    """Result of a finished tuning run in a comparison on networks.

    Cycles and seconds are the latency of all tuned layers in one inference. They are None if the
    target does not provide them.

    Attributes:
        network: the network, as the user wrote it.
        target: the target, as the user wrote it.
        tuner: the tuner, as the user wrote it.
        seed: seed of the run.
        trials: number of trials of all workloads.
        invalid_trials: number of invalid trials of all workloads.
        fallback_cycles: cycles with the schedules of the stock compiler.
        fallback_seconds: seconds with the schedules of the stock compiler.
        rule_cycles: cycles with the rule schedules, which are chosen without a trial.
        rule_seconds: seconds with the rule schedules.
        tuned_cycles: cycles with the tuned schedules.
        tuned_seconds: seconds with the tuned schedules.
        gain: latency of the rule schedules divided by the tuned latency (`tuning.gains`).
        bound_cycles: lower bound of the latency in cycles.
        bound_seconds: lower bound of the latency in seconds.
        wall_seconds: duration of the run.
        place: output directory of the run, relative to the output directory of the comparison.
        run_key: key of the run in its own output directory.
        mlflow_run_id: ID of the MLflow run; None if the run was not tracked.
    """

    network: str
    target: str
    tuner: str
    seed: int
    trials: int
    invalid_trials: int
    fallback_cycles: int | None
    fallback_seconds: float | None
    rule_cycles: int | None
    rule_seconds: float | None
    tuned_cycles: int | None
    tuned_seconds: float | None
    gain: float | None
    bound_cycles: int | None
    bound_seconds: float | None
    wall_seconds: float
    place: str
    run_key: str
    mlflow_run_id: str | None = None

    @property
    def title(self) -> str:
        """Name of the run in messages."""
        return run_title(self.network, self.target, self.tuner, self.seed)


@dataclass(frozen=True)
class RunBegan(Event):
    """Event that is emitted before a tuning run.

    Attributes:
        title: name of the run in messages.
    """

    title: str


@dataclass(frozen=True)
class RunTuned(Event):
    """Event that is emitted when a tuning run was finished and its result was stored.

    Attributes:
        run: result of the run.
    """

    run: NetworkRun


class KeptNetworkRuns:
    """Results of finished runs, stored in the output directory of a comparison on networks.

    A stored result is used only if the output directory of the run still contains that run. With
    the option `fresh`, stored results are deleted first.

    Args:
        plan: the plan of the comparison.
    """

    def __init__(self, plan: NetworksPlan) -> None:
        self.plan = plan
        self._rows = RowCache(plan.folder / RUNS, NetworkRun, plan.options.fresh)

    def find(self, job: NetworkJob) -> NetworkRun | None:
        """Return the stored result of a run, or None if the run has to be executed.

        The run also has to be executed if its output directory is missing or contains another run.

        Args:
            job: the run.

        Raises:
            UnsafeFile: a path is not a regular file.
        """
        row = self._rows.find(job.key)
        if row is None:
            return None
        held = read_run(job.options.folder)
        if held is None or held.get("key") != row.run_key or not is_complete(job.options.folder):
            return None
        return replace(row, network=job.network, target=job.target, tuner=job.tuner)

    def add(self, job: NetworkJob, summary: Summary) -> NetworkRun:
        """Store the result of a run on disk, and return it.

        Args:
            job: the run.
            summary: content of the run's `summary.json`.

        Returns:
            The result.

        Raises:
            OSError: the result cannot be written.
        """
        row = network_run(job, summary)
        self._rows.add(job.key, row)
        return row


def network_run(job: NetworkJob, summary: Summary) -> NetworkRun:
    """Extract the result of a tuning run from its summary.

    Args:
        job: the run.
        summary: content of the run's `summary.json`.

    Returns:
        The result.
    """
    rows, total = summary["workloads"], summary["total"]
    return NetworkRun(
        network=job.network, target=job.target, tuner=job.tuner, seed=job.seed,
        trials=sum(row["trials"] for row in rows),
        invalid_trials=sum(row["invalid_trials"] for row in rows),
        fallback_cycles=total["fallback_cycles"], fallback_seconds=total["fallback_seconds"],
        rule_cycles=total["rule_cycles"], rule_seconds=total["rule_seconds"],
        tuned_cycles=total["tuned_cycles"], tuned_seconds=total["tuned_seconds"],
        gain=four_figures(total).gain_over(RULE),
        bound_cycles=total["bound_cycles"], bound_seconds=total["bound_seconds"],
        wall_seconds=summary["wall_seconds"], place=job.place, run_key=summary["run_key"],
        mlflow_run_id=summary.get("mlflow_run_id"),
    )  # fmt: skip
