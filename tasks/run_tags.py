"""Parameters that identify a run in MLflow, and tags of Prefect's flow runs and tasks.

A tag of a board has a limit of one task at a time, so that two runs never measure on it at once.
"""

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
    """Tag the current flow run with its network, target and tuner.

    The tasks of the flow run get no tags, except for tasks that measure on a board. For each tag of
    a task, Prefect would ask the server for a slot in that tag's queue.

    Args:
        params: parameters of the run, see `params_of`.
    """
    tags = {*flow_run.tags, *(str(params[name]) for name in ("network", "target", "tuner"))}
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(str(flow_run.id)), tags=sorted(tags))


def board_of(target: str) -> str:
    """Return the Prefect tag of tasks that measure on a board.

    Args:
        target: name of the target.

    Returns:
        The tag; "" if the target is not a board.
    """
    return target if kind_of(target)[0].make_on is not None else ""


def take_turns(tag: str) -> None:
    """Limit the number of tasks with a tag to one at a time, in all Prefect runs.

    If the tag already has a limit, the limit is not changed.

    Args:
        tag: the tag, as `board_of` returns it.
    """
    with get_client(sync_client=True) as client:
        try:
            client.read_concurrency_limit_by_tag(tag)
        except ObjectNotFound:
            client.create_concurrency_limit(tag=tag, concurrency_limit=1)


def params_of(options: TuningOptions, network: TuningNetwork) -> Params:
    """Return the parameters that identify a run in MLflow.

    Runs with equal parameters are the same run.

    Args:
        options: options of the run.
        network: the imported network and its target.
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
