"""Checks the front end's answer for every model that the `onnx` package ships.

    python -m benchmarks.coverage.model_files                              # all 2,000, some minutes
    python -m benchmarks.coverage.model_files --kinds simple,light --json answers.json

An answer is false in these cases: the model loads but computes other values than the package
expects; the model is rejected with a reason that contradicts the file or names internals of
Tilewright; or the process crashes. The exit status is 1 if an answer is false.
"""

from __future__ import annotations

import json
import os
import queue
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.coverage.model_answers import Answer, Verdict
from benchmarks.coverage.onnx_models import KINDS, ModelCase, cases
from tilewright.core.child_process import Limits, RpcFailed, RpcProcess, RpcTimeout

MEMORY_BYTES = 12 << 30
MEANINGS: dict[Verdict, str] = {
    "right": "loads, right numbers",
    "loads": "loads, not compared",
    "refused": "clear refusal",
    "false": "false or unclear",
}


def sweep(cases: Sequence[ModelCase], processes: int, seconds: float) -> list[Answer]:
    """Check cases in several processes, and return the answers in the order of the cases.

    Each case has a time limit of `seconds`. A process that crashes is replaced by a new one.
    """
    free: queue.SimpleQueue[RpcProcess] = queue.SimpleQueue()
    children = [
        RpcProcess("benchmarks.coverage.model_answers", [], Limits(seconds, MEMORY_BYTES))
        for _ in range(processes)
    ]
    for child in children:
        free.put(child)

    def ask(case: ModelCase) -> Answer:
        child = free.get()
        try:
            return _ask(child, case)
        finally:
            free.put(child)

    try:
        with ThreadPoolExecutor(processes) as pool:
            answers = pool.map(ask, cases)
            return list(track(answers, total=len(cases), console=Console(stderr=True)))
    finally:
        for child in children:
            child.stop()


def _ask(child: RpcProcess, case: ModelCase) -> Answer:
    """Check a model in a process; if that takes too long, check it again without running it.

    Compiling a network for this CPU may be slow, but reading it must not be.
    """
    try:
        return _call(child, case, run=True)
    except RpcTimeout:
        pass
    except RpcFailed as error:
        return Answer(case.title, "false", f"the process died: {error}")
    try:
        read = _call(child, case, run=False)
    except RpcFailed as error:
        return Answer(case.title, "false", f"reading it: {error}")
    slow = "compiling and running it for this CPU took too long"
    return replace(read, said=slow) if read.verdict == "loads" else read


def _call(child: RpcProcess, case: ModelCase, run: bool) -> Answer:
    reply, _ = child.call({
        "kind": case.kind, "name": case.name, "path": str(case.path), "run": run,
        "data": "" if case.data is None else str(case.data),
    })  # fmt: skip
    if "error" in reply:
        return Answer(case.title, "false", f"the checker failed: {reply}")
    return Answer(case.title, cast(Verdict, reply["verdict"]), str(reply["said"]))


def main(
    kinds: Annotated[
        str, typer.Option(help="Models to check: one of " + ", ".join(KINDS))
    ] = ",".join(KINDS),
    only: Annotated[
        str, typer.Option(help="Only check models whose name contains this text.")
    ] = "",
    processes: Annotated[int, typer.Option(min=1)] = os.cpu_count() or 1,
    seconds: Annotated[float, typer.Option(help="Time limit per model, in seconds.")] = 60.0,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write every answer to this file.")
    ] = None,
) -> None:
    """Print a table, the false answers, and the counts."""
    with tempfile.TemporaryDirectory() as folder:
        results = [case for case in cases(kinds.split(","), Path(folder)) if only in case.title]
        answers = sweep(results, processes, seconds)
    if as_json is not None:
        as_json.write_text(json.dumps([asdict(answer) for answer in answers], indent=1))
    table = Table()
    table.add_column("models")
    for name in ("all", *MEANINGS.values()):
        table.add_column(name, justify="right")
    for kind in kinds.split(","):
        _row(table, kind, [a for a in answers if a.title.startswith(f"{kind}/")])
    table.add_section()
    _row(table, "all", answers)
    Console().print(table)
    false = [answer for answer in answers if answer.verdict == "false"]
    for answer in false:
        print(f"{answer.title}: {answer.said}")
    raise typer.Exit(bool(false))


def _row(table: Table, name: str, answers: Sequence[Answer]) -> None:
    counts = Counter(answer.verdict for answer in answers)
    table.add_row(name, f"{len(answers):,}", *(f"{counts[verdict]:,}" for verdict in MEANINGS))


if __name__ == "__main__":
    typer.run(main)
