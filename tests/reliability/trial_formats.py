"""Fuzzing inputs for trials: the table of a run, and the files of other tuners."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from tests.reliability.format_types import Draw, Format, Read, named, of_name
from tests.reliability.mutants import json_mutant, mutant

DATABASE = Path(__file__).parents[1] / "data" / "metaschedule"
TUNING = "tilewright.tuning"
AUTOTVM = {
    "input": ["llvm", "dense_pack.x86", [["TENSOR", [1, 64], "float32"], None], {}],
    "config": {"index": 3, "code_hash": None,
               "entity": [["tile_y", "sp", [-1, 1]], ["unroll", "ot", True]]},
    "result": [[0.002, 0.004], 0, 1.0, 2.0], "version": 0.2,
}  # fmt: skip


def _logs(folder: Path) -> tuple[Draw, Read]:
    """Return the fuzzing of AutoTVM's logs."""
    from tilewright.tuning.read_trials import read_trials

    path, good = folder / "tuning.log", json.dumps(AUTOTVM).encode()

    def draw(rng: random.Random) -> bytes:
        return (
            good + b"\n" + (json_mutant(AUTOTVM, rng) if rng.random() < 0.8 else mutant(good, rng))
        )

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        return read_trials(path)

    return draw, read_it


def _databases(folder: Path) -> tuple[Draw, Read]:
    """Return the fuzzing of MetaSchedule's databases."""
    from tilewright.tuning.foreign_trials import RECORDS, WORKLOADS
    from tilewright.tuning.read_trials import read_trials

    again = folder / "database"
    shutil.copytree(DATABASE, again)
    whole = {name: (again / name).read_bytes() for name in (RECORDS, WORKLOADS)}
    record = json.loads(whole[RECORDS].splitlines()[0])

    def draw(rng: random.Random) -> bytes:
        if rng.random() < 0.8:
            return named(RECORDS, json_mutant(record, rng))
        return named(WORKLOADS, mutant(whole[WORKLOADS], rng))

    def read_it(data: bytes) -> object:
        for other, before in whole.items():
            (again / other).write_bytes(before)
        name, content = of_name(data)
        (again / name).write_bytes(content)
        return read_trials(again)

    return draw, read_it


def _tables(folder: Path) -> tuple[Draw, Read]:
    """Return the fuzzing of the trial table of a finished run."""
    from tests.tune_bare import tune_bare
    from tilewright.tuning.run_trials import finished_trials

    out = folder / "out"
    tune_bare(workload="conv2d:n=1,c=16,h=8,w=8,o=32,k=3,s=2,p=1", tuner="random", trials=4,
              batch=4, out=str(out))  # fmt: skip
    whole = (out / "trials.parquet").read_bytes()

    def read_it(data: bytes) -> object:
        (out / "trials.parquet").write_bytes(data)
        run = finished_trials(out)
        return [run.trials_of_workload(layer.id) for layer in run.layers]

    return lambda rng: mutant(whole, rng), read_it


FORMATS = {
    "AutoTVM logs": Format(_logs, (f"{TUNING}.foreign_trials:read_lines",)),
    "MetaSchedule databases": Format(
        _databases,
        (f"{TUNING}.foreign_trials:read_metaschedule_database",
         f"{TUNING}.foreign_trials:read_lines"),
    ),
    "tables of trials": Format(_tables, (f"{TUNING}.run_trials:_read_table",)),
}  # fmt: skip
