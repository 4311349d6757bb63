"""Checks that absurd inputs give one message before any work, with little memory."""

from __future__ import annotations

import gzip
import json
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import TILEWRIGHT, Place
from tests.trial_tables import frame, tables
from tilewright.networks import zoo

pytestmark = [pytest.mark.attack, pytest.mark.slow(seconds=0.7)]

TABLES = Path(__file__).parents[1] / "data" / "tvm-vta"
HEAD = "tile_b,tile_h,tile_w,tile_ci,tile_co,oc_nthread,h_nthread,status,failure,reason,cycles_pynq"
GIB = 1 << 30


def message_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    message = done.stderr.splitlines()[-1]
    assert message.startswith("error: ")
    assert "Traceback" not in done.stderr
    return message


# -- specifications ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("token_limit", 10**30),
        ("uop_depth", 10**12),
        ("inp_depth", 10**400),
        ("clock_mhz", 1e-300),
        ("clock_mhz", 1e300),
        ("memory_latency_cycles", 10**30),
    ],
)
def test_absurd_keys_are_refused(place: Place, key: str, value: float) -> None:
    (place.folder / "m.json").write_text(json.dumps({"LOG_BLOCK": 4, key: value}))
    done = place.run("tune", "digits_cnn", "--target", "m.json", "--bare")
    message = message_of(done)
    assert key in message or f"m.json: {str(value)[:10]}" in message
    assert len(message) < 300


def test_a_machine_that_no_schedule_fits_is_found_before_any_search(place: Place) -> None:
    (place.folder / "m.json").write_text(json.dumps({"LOG_BLOCK": 4, "uop_depth": 1}))
    done = place.run("tune", "digits_cnn", "--target", "m.json", "--bare", "--out", "out")
    message = message_of(done)
    assert "no schedule of" in message
    assert "micro-op" in message
    assert len(frame(place.folder / "out")) == 0


# -- tables ------------------------------------------------------------------------------------


def table(place: Place, *rows: str, name: str = "C4.csv") -> str:
    shutil.copy(TABLES / "reference.json", place.folder)
    text = "\n".join([HEAD, *rows]).encode() + b"\n"
    (place.folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return name


def test_a_table_of_one_row_is_compared_on(place: Place) -> None:
    name = table(place, "1,1,1,1,1,1,1,valid,,,2651166")
    done = place.run(
        "compare", "--replay", name, "--tuners", "default,ml2tuner-published,autotvm,ga,baco",
        "--seeds", "0", "--trials", "4", "--jobs", "1", "--no-mlflow", "--out", "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = place.json("out/comparison.json")["runs"]
    assert [run["best_cycles"] for run in runs] == [[2651166]] * 5
    assert "optimum" in (place.folder / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    "row",
    [
        "1e30,1,1,1,1,1,1,valid,,,1000",
        f"1,1,1,1,1,1,1,valid,,,1{'0' * 40}",
        "1,1,1,1,1,1,1,valid,,,inf",
        "nan,1,1,1,1,1,1,valid,,,5",
    ],
)
def test_absurd_numbers_in_a_table_are_refused(place: Place, row: str) -> None:
    assert "C4.csv" in message_of(place.run("compare", "--replay", table(place, row)))


def test_spaces_beyond_counting_are_refused(place: Place) -> None:
    rows = [
        ",".join(str(i * factor + 1) for factor in (1, 3, 5, 7, 11, 13, 17)) + ",valid,,,9"
        for i in range(2000)
    ]
    assert "too many" in message_of(place.run("compare", "--replay", table(place, *rows)))


def test_a_table_that_unpacks_to_gigabytes_takes_no_memory(place: Place) -> None:
    shutil.copy(TABLES / "reference.json", place.folder)
    row = b"1,1,1,1,1,1,1,compile_error," + b"x" * 960 + b",,\n"
    with gzip.open(place.folder / "C4.csv.gz", "wb", compresslevel=1) as handle:
        handle.write(HEAD.encode() + b"\n")
        for _ in range(200):
            handle.write(row * 1000)
    done = limited(place, 2 * GIB, "compare", "--replay", "C4.csv.gz")
    assert "64 MiB" in message_of(done)


# -- memory ------------------------------------------------------------------------------------


def limited(place: Place, memory: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a hard limit on its address space, as `ulimit -v` sets it."""
    return subprocess.run(
        [str(TILEWRIGHT), *arguments], cwd=place.folder, env=place.environment,
        capture_output=True, text=True, check=False, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
    )  # fmt: skip


def test_a_good_model_is_read_under_a_limit_of_the_users(place: Place) -> None:
    (place.folder / "m.onnx").write_bytes(zoo.build("digits_cnn").SerializeToString())
    done = limited(place, 4 * GIB, "inspect", "m.onnx")
    assert done.returncode == 0, done.stderr
    done = limited(place, GIB // 2, "inspect", "m.onnx")  # with less, libraries hang
    assert "the process ran out of memory" in message_of(done)
    assert limited(place, GIB // 2, "inspect", "--help").returncode == 0


def test_a_reader_that_starves_says_whose_limit_it_was(place: Place) -> None:
    program = (
        "import resource, sys\n"
        "from tilewright.networks.sandbox import SandboxedSource\n"
        "from pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_AS, (280 << 20, 280 << 20))\n"
        "try: SandboxedSource(Path('m.onnx'), {}).examine()\n"
        "except Exception as error: print(error)\n"
    )
    (place.folder / "m.onnx").write_bytes(zoo.build("digits_cnn").SerializeToString())
    python = TILEWRIGHT.with_name("python")
    done = subprocess.run(
        [str(python), "-P", "-c", program], cwd=place.folder, capture_output=True, text=True,
        check=False, timeout=120, env=place.environment | {"OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert "this shell's limit of 0.273 GiB of memory (ulimit -v)" in done.stdout, done.stderr


# -- databases ---------------------------------------------------------------------------------


def _cut(kept: int) -> Callable[[Path], None]:
    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:kept])

    return cut


@pytest.mark.nightly(seconds=11)
@pytest.mark.parametrize("name", ["mlflow", "prefect"])
def test_a_truncated_database_is_named_and_nothing_is_lost(place: Place, name: str) -> None:
    tune = ("tune", "digits_cnn", "--layers", "conv3", "--trials", "2", "--batch", "2")
    first = place.run(*tune, "--bare", "--out", "out")
    assert first.returncode == 0, first.stderr
    stored = tables(place.folder / "out")
    assert place.run(*tune, "--out", "out").returncode == 0
    database = place.folder / "home" / name / f"{name}.db"
    for journal in database.parent.glob(f"{name}.db-*"):
        journal.unlink()
    _cut(300_000)(database)
    message = message_of(place.run(*tune, "--out", "out"))
    assert f"{database} is damaged" in message
    assert "move the file away" in message
    assert tables(place.folder / "out") == stored
    database.unlink()
    again = place.run(*tune, "--out", "out")
    assert again.returncode == 0, again.stderr
    assert tables(place.folder / "out") == stored
