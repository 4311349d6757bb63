"""Starts processes that help a command tune the same workloads through its trial store.

The store is that of the output directory (`search.run_record`), and every process begins with
another workload. The command itself does all it does alone: the remaining rounds, the schedules,
the files. So a worker may die at any time: the others do its work.

A worker is `python -m tilewright.flows.shared_worker`; it ends with its parent.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tilewright.core.python_path import module_path
from tilewright.models import save_state
from tilewright.search import ExplorerState, TrialStore
from tilewright.tuning.events import Listener, Note
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.tuning_task import TuningTask

Start = tuple[TuningTask, ExplorerState]


@contextmanager
def worker_pool(
    options: TuningOptions, starts: Sequence[Start], store: TrialStore, emit: Listener
) -> Iterator[None]:
    """Within, `options.workers - 1` processes tune the studies, too. Raises `OSError` if they
    cannot be started; that one ended badly is said in a note."""
    if options.workers == 1:
        yield
        return
    with tempfile.TemporaryDirectory() as name:
        spec = _write(Path(name), options, starts, store)
        reader, tether = os.pipe()
        workers = []
        try:
            for place in range(1, options.workers):
                workers.append(_start(spec, place, reader))
            yield
        finally:
            os.close(reader)
            for place, worker in enumerate(workers, start=1):
                _end(worker, place, emit)
            os.close(tether)


def _write(
    folder: Path, options: TuningOptions, starts: Sequence[Start], store: TrialStore
) -> Path:
    """What a worker has to know, as a file; the states they start from beside it."""
    for place, (_, state) in enumerate(starts):
        save_state(state, folder / str(place))
    spec = folder / "spec.json"
    spec.write_text(
        json.dumps(
            {
                "store": [str(store.place), store.folder],
                "trials": options.trials,
                "batch": options.batch,
                "workers": options.workers,
                "studies": [study.to_json() for study, _ in starts],
            }
        )
    )
    return spec


def _start(spec: Path, place: int, reader: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "tilewright.flows.shared_worker",
            str(reader),
            str(spec),
            str(place),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(reader,),
        start_new_session=True,  # Ctrl-C reaches the command, which ends them
        env=os.environ | {"PYTHONPATH": module_path()},
    )


def _end(worker: subprocess.Popen[bytes], place: int, emit: Listener) -> None:
    ended = worker.poll()
    if ended is None:
        os.killpg(worker.pid, signal.SIGKILL)
    _, errors = worker.communicate()
    if ended:
        lines = errors.decode(errors="replace").strip().splitlines() or [f"status {ended}"]
        emit(Note(f"worker {place} ended early, the others did its work: {lines[-1]}"))
