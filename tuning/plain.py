"""A run without orchestration: every step here and now, the ledger and the output files its only
trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search import Candidates, ExplorerState, History, Round, Session, Setting, Stages
from search.fresh import Fresh
from search.performers import InProcess
from search.stages import Batch, Known
from targets.base import Measurements, Target
from tuning import afresh, proof, run
from tuning import network as importing
from tuning.dealing import StopGain
from tuning.events import Listener, StageBegan, ignore
from tuning.fusing import Decide, Decided, ToDecide
from tuning.network import Extracted, Model, Network
from tuning.options import CHAMPION, OptionsError, TuningOptions
from tuning.outcome import Schedule, TunedWorkload, Untuned
from tuning.outputs import Picture, Summary, summary_of, target_row, write_outputs
from tuning.study import Study
from tuning.workload_run import Job, tune_workload


def tune_network(
    options: TuningOptions,
    emit: Listener = ignore,
    picture: Picture | None = None,
    decide: Decide | None = None,
) -> Summary:
    """Tune every workload of a network into `options.folder`; `picture` draws `convergence.png`,
    `decide` decides what is fused, if that is asked for. Returns what `summary.json` holds. Raises
    `OptionsError` for a warm start from a champion, or where nobody decides what is to be fused,
    else as `tuning.run.tune_network`."""
    if options.warm_start == CHAMPION:
        raise OptionsError(
            f"--warm-start {CHAMPION}: a bare run knows no champion; leave out --bare"
        )
    if options.fusion and decide is None:
        raise OptionsError(
            f"fusion '{options.fusion}' is asked for and nobody decides; give fusion.run.decide"
        )
    return run.tune_network(options, PlainNetwork(emit, picture, decide), emit)


@dataclass(frozen=True)
class PlainNetwork:
    """Keeps `tuning.run.NetworkSteps`."""

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

    def found(self, options: TuningOptions, network: Network) -> None:
        pass

    def start_of(self, study: Study) -> tuple[Study, ExplorerState]:
        return study, ExplorerState()

    def tune(self, job: Job) -> TunedWorkload:
        return tune_workload(job, PlainWorkload(self.emit))

    def decide_fusion(self, asked: ToDecide) -> Decided:
        assert self.decide is not None, "checked before the run"
        self.emit(StageBegan("decide_fusion"))
        return self.decide(asked)

    def write(
        self,
        options: TuningOptions,
        network: Network,
        tuned: Sequence[TunedWorkload],
        wall: float,
        dealt: StopGain | None,
        decided: Decided | None,
    ) -> Summary:
        summary = summary_of(options, network, tuned, dealt, decided)
        summary["wall_seconds"] = round(wall, 3)
        target = target_row(options, network.target)
        write_outputs(options.folder, target, summary, tuned, self.picture, decided)
        return summary


@dataclass(frozen=True)
class PlainWorkload:
    """Keeps `tuning.workload_run.WorkloadSteps`."""

    emit: Listener

    def untuned(self, study: Study) -> Untuned:
        self.emit(StageBegan("measure_default"))
        return proof.untuned(study)

    def stages(self, study: Study, setting: Setting) -> Stages:
        return AnnouncedStages(InProcess(setting), self.emit)

    def measure_afresh(
        self, study: Study, block: int, contenders: Sequence[Schedule], turns: int
    ) -> list[Fresh]:
        self.emit(StageBegan("measure_afresh"))
        return afresh.measure_in_turns(study, block, contenders, turns)

    def round_done(self, done: Round, trials: int) -> None:
        pass

    def verify(self, study: Study, chosen: Schedule) -> None:
        self.emit(StageBegan("verify_schedule"))
        proof.verify(study, chosen)

    def finish(self, tuned: TunedWorkload, session: Session) -> None:
        pass


class AnnouncedStages:
    """Says of every stage of a round that it begins; keeps `search.performers.Stages`."""

    def __init__(self, stages: Stages, emit: Listener) -> None:
        self.stages = stages
        self.emit = emit

    def begin(self, state: ExplorerState) -> ExplorerState:
        return self.stages.begin(state)

    def generate(self, state: ExplorerState, history: History, n: int) -> Candidates:
        self.emit(StageBegan("generate_candidates"))
        return self.stages.generate(state, history, n)

    def filter(
        self, state: ExplorerState, history: History, named: Candidates, n: int
    ) -> Candidates:
        self.emit(StageBegan("filter_candidates"))
        return self.stages.filter(state, history, named, n)

    def lower(self, state: ExplorerState, history: History, kept: Candidates, n: int) -> Batch:
        self.emit(StageBegan("lower_candidates"))
        return self.stages.lower(state, history, kept, n)

    def measure(self, round_index: int, batch: Batch, known: Known) -> Measurements:
        self.emit(StageBegan("simulate_batch"))
        return self.stages.measure(round_index, batch, known)

    def retrain(self, state: ExplorerState, history: History) -> ExplorerState:
        self.emit(StageBegan("retrain_models"))
        return self.stages.retrain(state, history)

    def relearn(self, state: ExplorerState, histories: Sequence[History]) -> ExplorerState:
        self.emit(StageBegan("retrain_models"))
        return self.stages.relearn(state, histories)
