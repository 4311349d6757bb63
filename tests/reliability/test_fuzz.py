"""Fuzzes every file format: damaged files must give a result or a typed error, in time.

`FUZZ_EXAMPLES` is the number of inputs per format (`make fuzz` sets it). Without it, only a few are
tried. Each format is read in its own process (`formats.py`). If the process crashes, hangs or uses
too much memory, the test fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reliability.formats import FORMATS
from tests.reliability.mutants import checked_line
from tests.reliability.readers import TRUSTED, readers
from tilewright import networks
from tilewright.core.errors import TilewrightError
from tilewright.networks import zoo
from tilewright.search import read_store
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.vta.disassembler import assemble, disassemble
from tilewright.targets.vta.lint import lint
from tilewright.targets.vta.program import Program, words_of
from tilewright.targets.vta.spec import VtaSpec, preset_files
from tilewright.targets.vta.timing import simulate_program
from tilewright.targets.workload import parse_workload

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
HANG_SECONDS = 60
MORE_MIB = 2048
"""Maximum growth in MiB of a process that reads files of one format."""
TRIED: Counter[str] = Counter()

fuzzed = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Hang(BaseException):
    """Raised when reading an input takes too long."""


@contextlib.contextmanager
def _expecting_an_end(kind: str) -> Iterator[None]:
    """Accept a result or a typed error within the time limit. Other exceptions fail the test."""

    def late(_: int, __: FrameType | None) -> None:
        raise Hang(f"no end after {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(HANG_SECONDS)
    try:
        with contextlib.suppress(TilewrightError):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        TRIED[kind] += 1


@pytest.fixture(scope="module", autouse=True)
def _figures() -> Iterator[None]:
    yield
    tried = ", ".join(f"{count:,} {kind}" for kind, count in sorted(TRIED.items()))
    print(f"\nfuzzed: {tried}; {sum(TRIED.values()):,} inputs, each ended")


def _edited(whole: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy that overwrites some bytes and cuts off the end."""
    edits = st.lists(st.tuples(st.integers(0, len(whole)), st.binary(max_size=6)), max_size=6)

    def edit(edits: list[tuple[int, bytes]], kept: int) -> bytes:
        data = bytearray(whole)
        for at, what in edits:
            data[at : at + len(what)] = what
        return bytes(data[:kept])

    return st.builds(edit, edits, st.integers(0, len(whole)) | st.just(len(whole)))


FEW = "FUZZ_EXAMPLES" not in os.environ
SEED = os.environ.get("FUZZ_SEED", "0")


@pytest.mark.slow(seconds=6)
def test_every_function_that_reads_a_file_is_fuzzed() -> None:
    """A new reader must belong to a format or have a reason for not being fuzzed."""
    fuzzed = {
        name for format_ in FORMATS.values() for name in (*format_.readers, *format_.in_child)
    }
    trusted = {name for names in TRUSTED.values() for name in names}
    assert readers() == fuzzed | trusted
    assert not fuzzed & trusted


@pytest.mark.attack
@pytest.mark.nightly(seconds=80)
@pytest.mark.parametrize("kind", ["all"] if FEW else sorted(FORMATS))
def test_damaged_files_of_every_format_raise_typed_errors(kind: str) -> None:
    count = 20 if FEW else EXAMPLES
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.formats", kind, str(count), SEED],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{kind}: status {done.returncode}\n{done.stderr[-4000:]}"
    for line in done.stdout.splitlines():
        document = json.loads(line)
        TRIED[document["kind"]] += document["inputs"]
        print(
            f"\n{document['kind']}: {document['inputs']:,} inputs in {document['seconds']:.0f} s, "
            f"the slowest {document['slowest']:.1f} s, {document['more_mib']} MiB more", end="",
        )  # fmt: skip
        assert document["more_mib"] < MORE_MIB
        assert not document["unread"], f"{document['kind']} does not reach what it says it reads"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
PRESET = json.loads(preset_files()["vta-pynq"].read_text())
MODEL = zoo.build("digits_cnn", weights=False).SerializeToString()
TRIAL = {
    "kind": "trial", "run": "r", "workload": "w", "target": "t", "round": 0, "slot": 0,
    "config": [0, 1], "knobs": {"a": 1}, "status": "valid", "reason": "", "cycles": 7,
    "seconds": 1e-6,
}  # fmt: skip
STREAMS = np.load(Path(__file__).parents[1] / "data" / "vta" / "functional.npz")


@pytest.mark.slow(seconds=6)
@fuzzed
@given(
    st.dictionaries(st.sampled_from(sorted(PRESET)) | st.text(max_size=6), JSON).map(
        lambda changes: json.dumps(PRESET | changes).encode()
    )
    | _edited(json.dumps(PRESET).encode())
    | st.just(b"[" * 2000)
)
def test_damaged_specifications_raise_typed_errors(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(data)
    with _expecting_an_end("specifications"):
        assert VtaSpec.load(str(path)).machine


@pytest.mark.slow(seconds=1.5)
@fuzzed
@given(
    st.binary(max_size=16 * 24)
    | st.lists(
        st.tuples(st.integers(0, 7), st.binary(min_size=16, max_size=16)), min_size=1, max_size=24
    ).map(lambda rows: b"".join(bytes([word[0] & 0xF8 | op]) + word[1:] for op, word in rows))
)
def test_damaged_instruction_streams_raise_typed_errors(data: bytes) -> None:
    spec = VtaSpec.load("vta-pynq")
    with _expecting_an_end("instruction streams"):
        words = words_of(data)
        assert assemble(disassemble(words, spec), spec) is not None
        lint(Program.from_bytes(data, bytes(4096), 0x1000), spec)
        simulate_program(words, spec)


@fuzzed
@given(
    st.lists(
        st.dictionaries(st.sampled_from(sorted(TRIAL)), JSON).map(lambda d: TRIAL | d), max_size=4
    ).map(lambda records: b"".join(_lines(records)))
    | _edited(checked_line(json.dumps(TRIAL).encode()) * 3)
    | st.binary(max_size=200)
)
def test_damaged_ledgers_raise_typed_errors(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(data)
    with _expecting_an_end("ledgers"), read_store(tmp_path) as store:
        store.frame()


def _lines(records: list[dict[str, object]]) -> list[bytes]:
    lines = []
    for record in records:
        with contextlib.suppress(ValueError):  # JSON has no NaN
            lines.append(checked_line(json.dumps(record, allow_nan=False).encode()))
    return lines


@fuzzed
@given(_edited(MODEL))
def test_damaged_models_raise_typed_errors(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with _expecting_an_end("models"):
        networks.load(path)


@fuzzed
@given(
    st.text(alphabet="conv2dense:=,x0123456789hwkspgd-> minmax", max_size=60)
    | st.from_regex(r"(conv2d|dense):([a-z]=[0-9]{1,12}(x[0-9]{1,4}){0,3},?){1,10}", fullmatch=True)
)
def test_damaged_workload_texts_raise_typed_errors(text: str) -> None:
    with _expecting_an_end("workload texts"):
        assert parse_workload(text).id
    with _expecting_an_end("epilogue texts"):
        parse_epilogue(text)
