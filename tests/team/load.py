"""Puts load on the servers with small flows, in a separate process: `python load.py FLOWS TASKS`.

It prints the number of finished tasks per flow, and the MLflow run with one metric per task.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tilewright.services.workspace import use_workspace

use_workspace()

import mlflow  # noqa: E402
from mlflow.entities import Metric  # noqa: E402
from prefect import flow, task  # noqa: E402

CLIENT = mlflow.MlflowClient()


@task(persist_result=False)
def square(number: int, run: str) -> int:
    """Run a task that logs a metric to MLflow, as a tuning round does."""
    CLIENT.log_batch(run, metrics=[Metric("square", float(number * number), 0, number)])
    return number * number


@flow(name="load", persist_result=False)
def load(tasks: int, run: str) -> int:
    """Run tasks one after the other, like the stages of a round."""
    return sum(square(number, run) >= 0 for number in range(tasks))


def one(tasks: int) -> dict[str, Any]:
    """Run a flow with its own MLflow run."""
    run = CLIENT.create_run(CLIENT.get_experiment_by_name("load").experiment_id).info.run_id
    done = load(tasks, run)
    CLIENT.set_terminated(run)
    return {"run": run, "done": done}


def main(flows: int, tasks: int) -> None:
    """Run `flows` flows at the same time, each with `tasks` tasks."""
    with ThreadPoolExecutor(flows) as pool:
        print(json.dumps(list(pool.map(one, [tasks] * flows))))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
