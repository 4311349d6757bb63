"""Parameters that identify a run in Prefect and MLflow, its tags, and tags that serialise tasks."""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run

from tilewright.core.files import Json
from tilewright.targets.registry import kind_of
from tilewright.tuning.network import TuningNetwork
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.tuning_task import space_of, tuning_task_of

Params = dict[str, Json]


def tag_flow_run(params: Params) -> None:
    """Tag the current flow run.

    Its tasks have no tags, except on boards, because Prefect asks the server for a slot in the
    queue of each tag.
    """
    tags = {*flow_run.tags, *(str(params[name]) for name in ("network", "target", "tuner"))}
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(str(flow_run.id)), tags=sorted(tags))


def board_of(target: str) -> str:
    """Return the tag of tasks that measure on the board `target`; "" if it is no board."""
    return target if kind_of(target)[0].make_on is not None else ""


def take_turns(tag: str) -> None:
    """Limit the tasks with this tag to one at a time in Prefect.

    A limit that is already set for the tag stays as it is.
    """
    with get_client(sync_client=True) as client:
        try:
            client.read_concurrency_limit_by_tag(tag)
        except ObjectNotFound:
            client.create_concurrency_limit(tag=tag, concurrency_limit=1)


def params_of(options: TuningOptions, network: TuningNetwork) -> Params:
    """Return the parameters that identify a run in MLflow.

    Runs with equal parameters are the same run.
    """
    explorer = tuning_task_of(options, network.subgraphs[0].workload).explorer
    chosen = {f"tuner.{k}": v for k, v in explorer.options.model_dump(mode="json").items()}
    return {
        "network": network.model.name,
        "target": network.target.name,
        "target_fingerprint": network.target.fingerprint,
        "space": space_of(options),
        "tuner": options.tuner,
        "trials": options.trials,
        "batch": options.batch,
        "seed": options.seed,
        **({} if options.stop_gain is None else {"stop_gain": options.stop_gain}),
        **({"fusion": options.fusion} if options.fusion else {}),
        **({"warm_start": options.warm_start} if options.warm_start else {}),
        **({} if network.target.deterministic else {"leaders": options.leaders}),
        **({"layers": ",".join(options.layers)} if options.layers else {}),
        "epilogue": options.steps if options.workload else options.epilogue,
        **chosen,
    }
