"""A run without orchestration: every step here and now, the ledger and the output files its only
trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.search import ExplorerState, LocalRunner, Round, Session
from tilewright.search.validation_records import ValidationMeasurement
from tilewright.targets.base import Target
from tilewright.tuning import final_validation, verification
from tilewright.tuning import network as importing
from tilewright.tuning.events import Listener, StageBegan, ignore
from tilewright.tuning.fusion_interface import Decide, Decided, ToDecide
from tilewright.tuning.network import Extracted, Model, TuningNetwork
from tilewright.tuning.options import CHAMPION, OptionsError, TuningOptions
from tilewright.tuning.outputs import Picture, Summary, summary_of, target_row, write_outputs
from tilewright.tuning.results import Baselines, Schedule, TunedWorkload
from tilewright.tuning.task_scheduler import StopGain
from tilewright.tuning.tune_network import tune_network as run_network
from tilewright.tuning.tune_workload import WorkloadJob, tune_workload
from tilewright.tuning.tuning_task import TuningTask


def tune_network(
    options: TuningOptions,
    emit: Listener = ignore,
    picture: Picture | None = None,
    decide: Decide | None = None,
) -> Summary:
    """Tune every workload of a network into `options.folder`; `picture` draws `convergence.png`,
    `decide` decides what is fused, if that is asked for. Returns what `summary.json` holds. Raises
    `OptionsError` for a warm start from a champion, or where nobody decides what is to be fused,
    else as `tuning.tune_network.tune_network`."""
    if options.warm_start == CHAMPION:
        raise OptionsError(
            f"--warm-start {CHAMPION}: a bare run knows no champion; leave out --bare"
        )
    if options.fusion and decide is None:
        raise OptionsError(
            f"fusion '{options.fusion}' is asked for and nobody decides; give "
            "tilewright.fusion.run.decide"
        )
    return run_network(options, PlainNetwork(emit, picture, decide), emit)


@dataclass(frozen=True)
class PlainNetwork:
    """Keeps `tuning.tune_network.NetworkSteps`."""

    emit: Listener
    picture: Picture | None = None
    decide: Decide | None = None

    def opened(self, options: TuningOptions) -> None:
        pass

    def import_model(self, options: TuningOptions) -> Model:
        self.emit(StageBegan("import_model"))
        return importing.import_model(options.model, options.input_shapes)

    def extract_subgraphs(self, options: TuningOptions, model: Model, target: Target) -> Extracted:
        self.emit(StageBegan("extract_subgraphs"))
        return importing.extract_subgraphs(
            model,
            target,
            options.epilogue_mode,
            options.max_waste,
            options.input_shapes,
            options.calibration,
        )

    def found(self, options: TuningOptions, network: TuningNetwork) -> None:
        pass

    def start_of(self, study: TuningTask) -> tuple[TuningTask, ExplorerState]:
        return study, ExplorerState()

    def tune(self, job: WorkloadJob) -> TunedWorkload:
        return tune_workload(job, PlainWorkload(self.emit))

    def decide_fusion(self, asked: ToDecide) -> Decided:
        assert self.decide is not None, "checked before the run"
        self.emit(StageBegan("decide_fusion"))
        return self.decide(asked)

    def write(
        self,
        options: TuningOptions,
        network: TuningNetwork,
        tuned: Sequence[TunedWorkload],
        wall: float,
        sharing: StopGain | None,
        decided: Decided | None,
    ) -> Summary:
        summary = summary_of(options, network, tuned, sharing, decided)
        summary["wall_seconds"] = round(wall, 3)
        target = target_row(options, network.target)
        write_outputs(options.folder, target, summary, tuned, self.picture, decided)
        return summary


@dataclass(frozen=True)
class PlainWorkload:
    """Keeps `tuning.tune_workload.WorkloadSteps`."""

    emit: Listener

    def baselines(self, study: TuningTask) -> Baselines:
        self.emit(StageBegan("measure_baseline"))
        return verification.baselines_of(study)

    def runner(self, study: TuningTask) -> LocalRunner:
        return LocalRunner(lambda step: self.emit(StageBegan(step)))

    def measure_leaders(
        self, study: TuningTask, block: int, contenders: Sequence[Schedule], turns: int
    ) -> list[ValidationMeasurement]:
        self.emit(StageBegan("measure_leaders"))
        return final_validation.measure_in_turns(study, block, contenders, turns)

    def round_done(self, done: Round, trials: int) -> None:
        pass

    def verify(self, study: TuningTask, chosen: Schedule) -> None:
        self.emit(StageBegan("verify_schedule"))
        verification.verify(study, chosen)

    def finish(self, tuned: TunedWorkload, session: Session) -> None:
        pass
