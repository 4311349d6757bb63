"""Lists every file format that is read from disk, with an example file and the code that reads it.

`python -m tests.reliability.formats KIND COUNT SEED` reads COUNT damaged files of one format in
this process and prints statistics as a JSON object. The KIND `all` runs every format in turn. The
process may crash; `test_fuzz.py` starts it and checks its exit status. Every input must give a
result or a typed error, within a time and a memory limit.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from tests import trial_tables
from tests.reliability import (
    artifact_formats,
    folder_formats,
    model_formats,
    trial_formats,
)
from tests.reliability.format_types import HANG_SECONDS, Draw, Format, Read
from tests.reliability.mutants import checked_line, json_mutant, mutant
from tests.tune_bare import tune_bare, tune_options
from tilewright.core.errors import TilewrightError

MORE_BYTES = 4 << 30
"""Bytes of address space that a process may use in addition to what it has after warming up."""
LAYER = "conv2d:n=1,c=16,h=8,w=8,o=32,k=3,s=2,p=1"
DATA = Path(__file__).parents[1] / "data"


class Hang(BaseException):
    """Raised when reading an input takes too long."""


# -- old ledgers, run folders ------------------------------------------------------------------


def _ledgers(folder: Path) -> tuple[Draw, Read]:
    from tests.earlier_versions import unpack
    from tilewright.search import StoredRun, read_store
    from tilewright.targets.fault_injection import FaultyTarget
    from tilewright.targets.workload import parse_workload

    path, target, work = folder / "ledger.jsonl", FaultyTarget({}), parse_workload(LAYER)
    space = target.space(work)
    whole = (unpack("0.2", folder / "earlier") / "tuned" / "ledger.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)[:12]
    whole = b"".join(lines)
    records = [json.loads(line)["record"] for line in lines]

    def draw(rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return mutant(whole, rng)
        mine = list(lines)
        for _ in range(rng.choice((1, 1, 3))):
            place = rng.randrange(len(records))
            line = checked_line(json_mutant(records[place], rng))
            mine[place : place + 1] = [line]
        return b"".join(mine)

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        with read_store(folder) as store:
            for key in store.runs().values():
                StoredRun(store, key, space).finished_rounds()
            return store.frame()

    return draw, read_it


def _stores(folder: Path) -> tuple[Draw, Read]:
    from tests.reliability.stored_runs import WORK, tune_into
    from tilewright.search import StoredRun, TrialStore, read_store
    from tilewright.search.trial_store import FILE
    from tilewright.targets.fault_injection import FaultyTarget

    path, space = folder / FILE, FaultyTarget({}).space(WORK)
    with TrialStore(path) as store:
        tune_into(store)
    whole = path.read_bytes()

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        with read_store(folder) as store:
            store.describe_owner()
            for key in store.runs().values():
                StoredRun(store, key, space).finished_rounds()
            return store.frame()

    return lambda rng: mutant(whole, rng), read_it


def _summaries(folder: Path) -> tuple[Draw, Read]:
    from tilewright.evaluation.explain.finished_run import read_folder

    out = folder / "out"
    tune_bare(workload=LAYER, tuner="random", trials=2, batch=2, out=str(out))
    whole = {name: (out / name).read_bytes() for name in ("summary.json", "schedules.json")}
    documents = {name: json.loads(data) for name, data in whole.items()}

    def draw(rng: random.Random) -> bytes:
        name = rng.choice(sorted(documents))
        return name.encode() + b"\n" + json_mutant(documents[name], rng)

    def read_it(data: bytes) -> object:
        name, _, text = data.partition(b"\n")
        for other, before in whole.items():
            (out / other).write_bytes(before)
        (out / name.decode()).write_bytes(text)
        run = read_folder(out)
        return [run.rounds(workload) for workload in run.workloads]

    return draw, read_it


def _run_files(folder: Path) -> tuple[Draw, Read]:
    import io

    from rich.console import Console

    from tilewright import tuning
    from tilewright.cli.views.finished_runs import show_trials
    from tilewright.tuning.run_metadata import check_vacant, read_run, replacement_note, trials_made

    out = folder / "out"
    options = tuning.TuningOptions.parse(
        workload=LAYER, tuner="random", trials=2, batch=2, out=str(out), seed=5
    )
    tune_options(options)
    document, frame = (
        json.loads((out / "run.json").read_bytes()),
        trial_tables.frame(out),
    )

    def read_it(data: bytes) -> object:
        (out / "run.json").write_bytes(data)
        run = read_run(out)
        names = {} if run is None else {workload["id"]: workload for workload in run["workloads"]}
        show_trials(frame, names, None, Console(file=io.StringIO()))
        replacement_note(options), check_vacant(options), trials_made(out)
        return run

    return lambda rng: json_mutant(document, rng), read_it


def _comparisons(folder: Path) -> tuple[Draw, Read]:
    from tilewright.evaluation.compare.benchmark_suite import recorded_test_bed
    from tilewright.evaluation.compare.job_runner import run_jobs
    from tilewright.evaluation.compare.plan import parse_tuner_configs, plan
    from tilewright.evaluation.compare.workload_runs import KeptRuns
    from tilewright.evaluation.row_cache import RUNS, count_rows

    bed = recorded_test_bed([DATA / "tvm-vta" / "C10.csv.gz"])
    what = plan(bed, parse_tuner_configs("random"), (0,), 4, 2)
    kept = KeptRuns(folder, what)
    for run in run_jobs(what, what.jobs):
        kept.add(run)
    path = folder / RUNS
    document = json.loads(path.read_bytes())

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        count_rows(path)
        return [KeptRuns(folder, what).find(job) for job in what.jobs]

    return lambda rng: json_mutant(document, rng), read_it


def _leaderboards(folder: Path) -> tuple[Draw, Read]:
    from tilewright.evaluation.compare.benchmark_suite import recorded_test_bed
    from tilewright.evaluation.compare.plan import parse_tuner_configs, plan
    from tilewright.evaluation.compare.record import RECORD, read_leaderboards
    from tilewright.flows.comparison import compare_tuners
    from tilewright.reports.leaderboard import leaderboard_rows, verdict
    from tilewright.search import LocalRunner

    bed = recorded_test_bed([DATA / "tvm-vta" / "C10.csv.gz"])
    compare_tuners(LocalRunner(), plan(bed, parse_tuner_configs("random"), (0,), 4, 2), folder)
    whole = json.loads((folder / RECORD).read_bytes())
    earlier = {key: value for key, value in whole.items() if key != "leaderboards"}

    def read_it(data: bytes) -> object:
        (folder / RECORD).write_bytes(data)
        boards = read_leaderboards(folder)
        return leaderboard_rows(boards), [verdict(board) for board in boards]

    return lambda rng: json_mutant(rng.choice((whole, earlier)), rng), read_it


def _sweeps(folder: Path) -> tuple[Draw, Read]:
    from tilewright.evaluation.compare.network_runs import NetworkRun
    from tilewright.evaluation.row_cache import RUNS, RowCache

    run = NetworkRun(
        network="digits_cnn", target="vta-pynq", tuner="random", seed=0, trials=8,
        invalid_trials=1, fallback_cycles=9, fallback_seconds=0.1, rule_cycles=9, rule_seconds=0.1,
        tuned_cycles=5, tuned_seconds=0.05, gain=1.8, bound_cycles=4, bound_seconds=0.04,
        wall_seconds=2.0, place="digits_cnn", run_key="0" * 32, mlflow_run_id=None,
    )  # fmt: skip
    path = folder / RUNS
    RowCache(path, NetworkRun).add("key", run)
    document = json.loads(path.read_bytes())

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        return RowCache(path, NetworkRun).find("key")

    return lambda rng: json_mutant(document, rng), read_it


# -- models in a registry -------------------------------------------------------------------------


def _champions(folder: Path) -> tuple[Draw, Read]:
    """Return the fuzzing of `MLmodel`, which says how a registered model's file is read."""
    from tilewright.tasks.champion_registry import champion_file, digest_of

    about = (
        b"artifact_path: models\nflavors:\n  xgboost:\n    data: model.ubj\n    model_format: ubj\n"
        b"metadata:\n  tilewright:\n    classify: false\n    columns:\n    - f0\n    - f1\n"
        b"    features: 0123456789abcdef\n    kind: xgboost\n    options: {}\n    role: P\n"
        b"    target: vta-pynq\n    tuner: ml2tuner\nmodel_uuid: m-0123\nrun_id: '0123'\n"
        b"utc_time_created: '2026-01-01 00:00:00.000000'\n"
    )
    (folder / "model.ubj").write_bytes(b"x")

    def read_it(data: bytes) -> object:
        (folder / "MLmodel").write_bytes(data)
        try:
            return digest_of(*champion_file(folder))
        except (ValueError, OSError):
            return None

    return lambda rng: mutant(about, rng), read_it


# -- files that a user names -------------------------------------------------------------------


def _specifications(folder: Path) -> tuple[Draw, Read]:
    from tilewright.targets.vta.spec import VtaSpec, preset_files

    path = folder / "spec.json"
    document = json.loads(preset_files()["vta-pynq"].read_text())

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        return VtaSpec.load(str(path)).machine

    return lambda rng: json_mutant(document, rng), read_it


def _gemmini_specifications(folder: Path) -> tuple[Draw, Read]:
    from tilewright.targets.gemmini.spec import GemminiSpec, preset_files

    path = folder / "gemmini.json"
    document = json.loads(preset_files()["gemmini-default"].read_text())

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        return GemminiSpec.load(str(path)).fingerprint

    return lambda rng: json_mutant(document, rng), read_it


def _energies(folder: Path) -> tuple[Draw, Read]:
    from tilewright.targets.vta import energy

    path = folder / "energy.json"
    document = json.loads(Path(energy.__file__).with_name("energy.json").read_text())

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        energy._read.cache_clear()
        return energy._read(path)

    return lambda rng: json_mutant(document, rng), read_it


def _tables(folder: Path) -> tuple[Draw, Read]:
    import gzip

    from tilewright.targets.vta.recorded_tables import recorded_target

    source = DATA / "tvm-vta"
    text = gzip.decompress((source / "C10.csv.gz").read_bytes())
    some = b"\n".join(text.split(b"\n")[:30]) + b"\n"
    layers = json.loads((source / "reference.json").read_text())
    layer = next(layer for layer in layers if layer["layer"] == "C10")

    def draw(rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return b"reference.json\n" + json_mutant([layer], rng)
        if rng.random() < 0.2:
            return b"C10.csv.gz\n" + mutant(gzip.compress(some, mtime=0), rng)
        return b"C10.csv\n" + mutant(some, rng)

    def read_it(data: bytes) -> object:
        name, _, rest = data.partition(b"\n")
        (folder / "C10.csv").write_bytes(some)
        (folder / "reference.json").write_text(json.dumps([layer]))
        (folder / name.decode()).write_bytes(rest)
        table = "C10.csv.gz" if name.endswith(b"gz") else "C10.csv"
        return recorded_target([folder / table]).fingerprint

    return draw, read_it


def _streams(folder: Path) -> tuple[Draw, Read]:
    from tilewright.cli.commands.vta import _read
    from tilewright.targets.vta.disassembler import assemble, disassemble
    from tilewright.targets.vta.lint import lint
    from tilewright.targets.vta.program import Program, words_of
    from tilewright.targets.vta.spec import VtaSpec
    from tilewright.targets.vta.timing import simulate_program

    spec, path = VtaSpec.load("vta-pynq"), folder / "stream.bin"

    def draw(rng: random.Random) -> bytes:
        rows = []
        for _ in range(rng.randrange(1, 25)):
            word = bytearray(rng.randbytes(16) if rng.random() < 0.5 else bytes(16))
            word[0] = (word[0] & 0xF8) | rng.randrange(8)
            rows.append(mutant(bytes(word), rng)[:16])
        return b"".join(rows)

    def read_it(data: bytes) -> object:
        path.write_bytes(data)
        words = words_of(_read(path))
        assert assemble(disassemble(words, spec), spec) is not None
        lint(Program.from_bytes(data, bytes(4096), 0x1000), spec)
        return simulate_program(words, spec)

    return draw, read_it


TUNING = "tilewright.tuning.run_metadata"
TABLE = "tilewright.targets.vta.recorded_tables"
STORE = "tilewright.search.trial_store"
ROWS = ("tilewright.evaluation.row_cache:_read",)
FORMATS = {
    "ledgers": Format(_ledgers, ("tilewright.search.ledger_import:_records",)),
    "trial stores": Format(
        _stores,
        (f"{STORE}:TrialStore._sqlite", f"{STORE}:_connect"),
    ),
    "run folders": Format(_summaries, ("tilewright.tuning.read_run:read_written",)),
    "run.json": Format(_run_files, (f"{TUNING}:read_run", f"{TUNING}:_own_summary")),
    "comparison records": Format(_comparisons, ROWS),
    "leaderboards": Format(
        _leaderboards, ("tilewright.evaluation.compare.record:read_leaderboards",)
    ),
    "sweep records": Format(_sweeps, ROWS),
    "champions": Format(_champions, ("tilewright.tasks.champion_registry:champion_file",)),
    "specifications": Format(_specifications, ("tilewright.targets.vta.spec:VtaSpec.load",)),
    "Gemmini specifications": Format(
        _gemmini_specifications, ("tilewright.targets.gemmini.spec:GemminiSpec.load",)
    ),
    "energy constants": Format(_energies, ("tilewright.targets.vta.energy:_read",)),
    "replay tables": Format(_tables, (f"{TABLE}:_reference_workload", f"{TABLE}:_text")),
    "instruction streams": Format(_streams, ("tilewright.cli.commands.vta:_read",)),
    **artifact_formats.FORMATS,
    **folder_formats.FORMATS,
    **model_formats.FORMATS,
    **trial_formats.FORMATS,
}  # fmt: skip


def fuzz(kind: str, count: int, seed: int) -> dict[str, object]:
    """Read `count` damaged files of one format. Any error that is not typed is raised."""
    with tempfile.TemporaryDirectory() as name:
        draw, read = FORMATS[kind].make(Path(name))
        rng, answers, slowest = random.Random(seed), 0, 0.0
        for _ in range(10):  # warm up: compile and import
            with contextlib.suppress(TilewrightError):
                read(draw(rng))
        unread = _unread(FORMATS[kind], draw, read, rng)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _limit_memory()
        signal.signal(signal.SIGALRM, _late)
        begin = time.monotonic()
        for number in range(count):
            data = draw(rng)
            signal.alarm(HANG_SECONDS)
            start = time.monotonic()
            try:
                read(data)
                answers += 1
            except TilewrightError:
                pass
            except BaseException as error:
                kept = Path(tempfile.gettempdir()) / f"fuzzed-{seed}-{number}.bin"
                kept.write_bytes(data)
                error.add_note(f"{kind}, seed {seed}, input {number}, kept as {kept}")
                raise
            finally:
                signal.alarm(0)
            slowest = max(slowest, time.monotonic() - start)
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return {
            "kind": kind, "inputs": count, "answers": answers, "slowest": round(slowest, 3),
            "seconds": round(time.monotonic() - begin, 1), "more_mib": more >> 10,
            "unread": unread,
        }  # fmt: skip


def _unread(of: Format, draw: Draw, read: Read, rng: random.Random) -> list[str]:
    """Return the readers of a format that do not run when its inputs are read."""
    left = set(of.readers)

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            left.discard(f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}")

    for _ in range(40):
        if not left:
            break
        data = draw(rng)
        sys.setprofile(called)
        try:
            with contextlib.suppress(TilewrightError):
                read(data)
        finally:
            sys.setprofile(None)
    return sorted(left)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MORE_BYTES
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _late(_: int, __: FrameType | None) -> None:
    raise Hang(f"no end after {HANG_SECONDS} s")


if __name__ == "__main__":
    kinds = sorted(FORMATS) if sys.argv[1] == "all" else [sys.argv[1]]
    for each in kinds:
        some = max(1, int(int(sys.argv[2]) * FORMATS[each].share))
        print(json.dumps(fuzz(each, some, int(sys.argv[3]))), flush=True)
