"""The two flows: a network, and each of its workloads. Nothing but the order of the tasks.

Annotations are not postponed here: Prefect must resolve them when it loads a served flow by name.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prefect import flow
from prefect.runtime import flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows.rounds import Progress, resume, run_round
from services.home import use_home
from targets.files import Json
from targets.vta.spec import VtaSpec
from tasks import artifacts, network, tracking, warm_start
from tasks.dead_runs import retire_dead_runs
from tasks.ledgers import open_ledger
from tasks.network import Subgraph
from tasks.outcome import (
    Outcome,
    choose_schedule,
    measure_default,
    read_default,
    verify_schedule,
)
from tasks.session import emit, refreshing
from tuning import outputs
from tuning.options import TuningOptions
from tuning.study import Study


@flow(
    name="tune_network", flow_run_name="{options.model} on {options.target}", persist_result=False
)
def tune_network(options: TuningOptions) -> dict[str, Json]:
    """Tune every workload of a network; returns what `summary.json` holds."""
    start = time.perf_counter()
    use_home()
    spec = VtaSpec.load(options.target)
    with refreshing(options.fresh), open_ledger(options.folder, fresh=options.fresh):
        retire_dead_runs(options, current=str(flow_run.id))
        model = network.import_model(options.model, options.input_shapes)
        manifest = network.extract_subgraphs(model, spec, options.max_waste, options.input_shapes)
        found = network.read_subgraphs(manifest)
        if options.warm_start:
            warm_start.check_champions([study_of(options, subgraph) for subgraph in found])
        name = str(model.values["name"])
        params = _params(options, name, spec, found)
        about = params | {"model": model.key}
        run_id = artifacts.open_network_run(name, about, params, options.fresh)
        emit(
            "network",
            name=name,
            target=spec.name,
            workloads=[[s.workload.id, str(s.workload), s.count] for s in found],
        )
        # A subflow's heartbeat thread would be joined at its end, for a second each.
        with _ending(run_id), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            outcomes = [tune_workload(options, params, subgraph, run_id) for subgraph in found]
            summary = _summary(options, name, spec, outcomes, run_id)
            summary["wall_seconds"] = round(time.perf_counter() - start, 3)
            target = {"name": spec.name, "fingerprint": params["target_fingerprint"]}
            target["spec"] = spec.model_dump(by_alias=True, exclude={"source"})
            artifacts.log_network_artifacts(options.folder, target, summary, outcomes, run_id)
    return summary


@flow(
    name="tune_workload",
    flow_run_name="{subgraph.workload}",
    persist_result=False,
    validate_parameters=False,
)
def tune_workload(
    options: TuningOptions, params: dict[str, Json], subgraph: Subgraph, parent_run_id: str
) -> Outcome:
    """Tune one workload: rounds of candidates until the trials are spent, then the proof."""
    start = time.perf_counter()
    study, state = warm_start.begin(study_of(options, subgraph), options.warm_start)
    run_id = artifacts.open_workload_run(study, parent_run_id, params, options.fresh)
    with _ending(run_id), open_ledger(options.folder) as ledger:
        run = ledger.run(*study.ledger_key)
        default = read_default(measure_default(study))
        roofline = study.target.roofline_cycles(study.workload)
        emit("workload", id=study.workload.id, default=default.cycles, roofline=roofline)
        with tracking.StepLog(run_id) as log:
            progress = resume(Progress.start(study, log, state), run, options.trials)
            reused = len(progress.history)
            while progress.open and len(progress.history) < options.trials:
                progress = run_round(progress, run, options.trials)
        chosen = choose_schedule(study, progress.history, default)
        verify_schedule(study, chosen)
        outcome = Outcome(
            study=study,
            count=subgraph.count,
            names=subgraph.names,
            default=default,
            chosen=chosen,
            roofline_cycles=roofline,
            trials=len(progress.history),
            invalid_trials=int((~progress.history.valid).sum()),
            lowered=progress.lowered,
            failed_compiles=len(progress.history.failed),
            reused_trials=reused,
            wall_seconds=time.perf_counter() - start,
        )
        artifacts.log_artifacts(outcome, options.folder, run_id, progress.state)
    emit("tuned", **outcome.summary())
    return outcome


def study_of(options: TuningOptions, subgraph: Subgraph) -> Study:
    return Study(
        workload=subgraph.workload,
        target_name=options.target,
        space_name=options.space,
        tuner=options.tuner,
        seed=options.seed,
        batch=options.batch,
        options=tuple(sorted(options.tuner_options.items())),
    )


def _params(
    options: TuningOptions, name: str, spec: VtaSpec, found: list[Subgraph]
) -> dict[str, Json]:
    """What identifies a run to MLflow: equal parameters, one run."""
    study = study_of(options, found[0])
    chosen = {f"tuner.{k}": v for k, v in study.explorer.options.model_dump(mode="json").items()}
    return {
        "network": name,
        "target": spec.name,
        "target_fingerprint": study.target.fingerprint,
        "space": options.space,
        "tuner": options.tuner,
        "trials": options.trials,
        "batch": options.batch,
        "seed": options.seed,
        **({"warm_start": options.warm_start} if options.warm_start else {}),
        **chosen,
    }


def _summary(
    options: TuningOptions, name: str, spec: VtaSpec, outcomes: list[Outcome], run_id: str
) -> dict[str, Json]:
    return {
        "network": name,
        "target": spec.name,
        "tuner": options.tuner,
        "seed": options.seed,
        "space": options.space,
        "trials": options.trials,
        "batch": options.batch,
        "tuner_options": options.tuner_options,
        "warm_start": options.warm_start,
        "workloads": [outcome.summary() for outcome in outcomes],
        "total": outputs.totals(outcomes),
        "wall_seconds": 0.0,
        "mlflow_run_id": run_id,
        "prefect_flow_run_id": str(flow_run.id),
    }


@contextmanager
def _ending(run_id: str) -> Iterator[None]:
    """Close an MLflow run as what it was: finished, failed, or stopped by a person."""
    try:
        yield
    except BaseException as error:
        tracking.close_run(run_id, "FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    tracking.close_run(run_id)
