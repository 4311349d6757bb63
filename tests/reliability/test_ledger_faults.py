"""Tests what a ledger makes of faults of a disk, a clock or another process."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.search import LeaseHeld, Ledger, LedgerError, read
from tilewright.search.file_lock import writer
from tilewright.targets.fault_injection import FaultyTarget
from tilewright.targets.workload import parse_workload

WORK = parse_workload("conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1")
TRIALS, BATCH = 20, 4


def _tune(ledger: Ledger, target: FaultyTarget | None = None) -> None:
    explorer = make_explorer("random", {})
    for _ in tune(
        target or FaultyTarget({}), WORK, explorer, trials=TRIALS, batch=BATCH, ledger=ledger
    ):
        pass


def _whole(folder: Path) -> bytes:
    with Ledger(folder / "whole.jsonl") as ledger:
        _tune(ledger)
    return (folder / "whole.jsonl").read_bytes()


class Forgetful(FaultyTarget):
    """Counts what it measures."""

    measured = 0

    def measure(self, lowered):  # type: ignore[no-untyped-def]
        self.measured += len(lowered)
        return super().measure(lowered)


def test_a_record_torn_at_any_byte_is_cut_reported_and_made_good(tmp_path: Path) -> None:
    whole = _whole(tmp_path)
    path = tmp_path / "ledger.jsonl"
    second = whole.split(b"\n")[6]
    start = whole.index(second)
    for cut in (*range(start, start + len(second), 37), start + len(second)):
        path.write_bytes(whole[:cut])
        target = Forgetful({})
        with Ledger(path) as ledger:
            assert bool(ledger.problems) == (whole[cut - 1 : cut] != b"\n")
            assert all("last record was torn" in problem for problem in ledger.problems)
            held = len(ledger.frame())
            _tune(ledger, target)
        assert path.read_bytes() == whole
        assert target.measured == TRIALS - held


def test_damage_in_the_middle_is_set_aside_and_costs_one_trial(tmp_path: Path) -> None:
    whole = _whole(tmp_path)
    path = tmp_path / "ledger.jsonl"
    lines = whole.split(b"\n")
    lines[7] = lines[7].replace(b'"cycles":', b'"cycles":1', 1)
    path.write_bytes(b"\n".join(lines))
    target = Forgetful({})
    with Ledger(path) as ledger:
        assert ledger.problems == ["ledger.jsonl, line 8: damaged, set aside"]
        _tune(ledger, target)
        frame = ledger.frame()
    assert target.measured == 1
    assert (tmp_path / "ledger.jsonl.quarantine").read_bytes() == lines[7] + b"\n"
    assert sorted(path.read_bytes().split(b"\n")) == sorted(whole.split(b"\n"))
    assert len(frame) == TRIALS


@pytest.mark.slow(seconds=4)
@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    edits=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=8)), min_size=1, max_size=6
    ),
    kept=st.floats(0, 1),
)
def test_no_bytes_in_a_ledger_stop_a_run(
    tmp_path: Path, edits: list[tuple[float, bytes]], kept: float
) -> None:
    whole = bytearray(_cached_whole(tmp_path))
    for where, what in edits:
        at = int(where * len(whole))
        whole[at : at + len(what)] = what
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(whole[: int(kept * len(whole))])
    with Ledger(path) as ledger:
        _tune(ledger)
        assert len(ledger.frame()) == TRIALS
    assert read(path).problems == []


_CACHE: dict[str, bytes] = {}


def _cached_whole(folder: Path) -> bytes:
    if "whole" not in _CACHE:
        _CACHE["whole"] = _whole(folder)
    return _CACHE["whole"]


# -- two writers -------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from tilewright.search import Ledger
shift = float(sys.argv[2])
if shift:
    now = time.time
    time.time = lambda: now() + shift
with Ledger(Path(sys.argv[1]), lease_seconds=float(sys.argv[3])) as ledger:
    print("held", flush=True)
    time.sleep(600)
"""


def _hold(path: Path, shift: float = 0.0, lease_seconds: float = 60.0) -> subprocess.Popen[bytes]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(shift), str(lease_seconds)],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = _hold(tmp_path / "ledger.jsonl")
    yield process
    process.kill()
    process.wait()


def test_a_second_writer_is_refused_until_the_first_is_killed(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(LeaseHeld, match=rf"process {holder.pid} .*another output directory"):
        Ledger(path)
    assert read(path).records == []  # reading is always allowed
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with Ledger(path) as ledger:
        _tune(ledger)


def test_a_clock_set_forward_or_back_takes_no_lease_from_a_living_writer(
    tmp_path: Path, holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    for shift in (-1e6, -3600.0, 3600.0, 1e6):
        monkeypatch.setattr(time, "time", lambda shift=shift: now() + shift)
        with pytest.raises(LeaseHeld):
            Ledger(tmp_path / "ledger.jsonl")


def test_a_writer_whose_clock_jumps_goes_on_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, shifts = time.time, iter([0.0, 1e6, -1e6, 3600.0, -3600.0, 0.0] * 50)
    monkeypatch.setattr(time, "time", lambda: now() + next(shifts))
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        _tune(ledger)
    monkeypatch.undo()
    assert (tmp_path / "ledger.jsonl").read_bytes() == _whole(tmp_path)


def test_a_lease_of_another_machine_expires(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    foreign = {"owner": "x", "pid": 1, "host": "elsewhere", "seconds": 60.0, "boot": "theirs"}
    lease = tmp_path / "ledger.jsonl.lease"
    lease.write_text(json.dumps(foreign | {"ends": time.time() + 50}))
    with pytest.raises(LeaseHeld, match="elsewhere"):
        Ledger(path)
    for ends in (time.time() - 1, time.time() + 1e6):  # over, or from a clock that was set back
        lease.write_text(json.dumps(foreign | {"ends": ends}))
        Ledger(path).close()


def test_a_writer_that_is_stopped_keeps_its_lease_and_is_named_as_stopped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    holder = _hold(path, lease_seconds=0.2)
    try:
        holder.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # longer than its time
        with pytest.raises(LeaseHeld, match=rf"stopped: 'kill -CONT {holder.pid}' lets it go on"):
            Ledger(path)
        assert f"process {holder.pid}" in str(writer(path))
    finally:
        holder.kill()
        holder.wait()
    assert writer(path) is None
    Ledger(path).close()


def test_a_writer_whose_lease_another_machine_took_over_is_refused(tmp_path: Path) -> None:
    """As it may be where machines share a disk but no locks."""
    path, lease = tmp_path / "ledger.jsonl", tmp_path / "ledger.jsonl.lease"
    foreign = {"owner": "x", "pid": 1, "host": "elsewhere", "seconds": 60.0, "boot": "theirs"}
    with Ledger(path) as ledger:
        with lease.open("r+b") as file:
            file.write(json.dumps(foreign | {"ends": time.time() + 50}).encode().ljust(512))
        with pytest.raises(LeaseHeld, match=r"process 1 on elsewhere; .* if it hangs"):
            _tune(ledger)
    assert not path.exists()


@pytest.mark.attack
def test_a_lease_removed_while_it_is_held_makes_no_second_writer(tmp_path: Path) -> None:
    path, lease = tmp_path / "ledger.jsonl", tmp_path / "ledger.jsonl.lease"
    with Ledger(path) as first:
        lease.unlink()
        with Ledger(path) as second:
            with pytest.raises(LeaseHeld, match="is being written by process"):
                _tune(first)
            _tune(second)
    path, lease = tmp_path / "other.jsonl", tmp_path / "other.jsonl.lease"
    with Ledger(path) as first:
        lease.unlink()
        with Ledger(path) as second:
            _tune(second)
        with pytest.raises(LedgerError, match="was changed by somebody else"):
            _tune(first)
    assert path.read_bytes() == _whole(tmp_path)


FORKING = """
import os, sys, time
from pathlib import Path
from tilewright.search import LeaseHeld, Ledger
from tests.reliability.test_ledger_faults import _tune
ledger = Ledger(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    try:
        _tune(ledger)
    except LeaseHeld:
        ledger.close()
        print("refused", flush=True)
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""


@pytest.mark.slow(seconds=3)
def test_a_fork_neither_has_the_lease_nor_gives_it_back_nor_outlives_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", FORKING, str(path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        said = {parent.stdout.readline().strip() for _ in range(2)}
        (child,) = (int(each) for each in said - {"refused"})
        try:
            assert "refused" in said
            with pytest.raises(LeaseHeld, match=f"process {parent.pid} "):
                Ledger(path)
            parent.kill()
            parent.wait()
            os.kill(child, 0)  # it lives
            Ledger(path).close()
        finally:
            parent.kill()
            os.kill(child, signal.SIGKILL)


def test_looking_who_writes_keeps_nobody_from_writing(tmp_path: Path) -> None:
    path, looking = tmp_path / "ledger.jsonl", threading.Event()

    def look() -> None:
        while not looking.is_set():
            writer(path)

    Ledger(path).close()
    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(50):
            Ledger(path).close()
    finally:
        looking.set()
        looker.join()


# -- disks -------------------------------------------------------------------------------------


def test_a_full_disk_is_one_clear_error_and_the_run_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True
        ).returncode
    ):
        pytest.skip("only root can mount a small disk; the next test limits the file size instead")
    try:
        filler = disk / "filler"
        with Ledger(disk / "ledger.jsonl") as ledger:
            with filler.open("wb") as file, pytest.raises(OSError, match="No space"):
                file.write(bytes(1 << 20))
            filler.write_bytes(bytes(filler.stat().st_size - 4096))
            with pytest.raises(LedgerError, match="No space left on device; nothing of this batch"):
                _tune(ledger)
            assert read(ledger.path).problems == []
        filler.unlink()
        with Ledger(disk / "ledger.jsonl") as ledger:
            _tune(ledger)
        assert (disk / "ledger.jsonl").read_bytes() == _whole(tmp_path)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tilewright.search import Ledger, LedgerError
from tests.reliability.test_ledger_faults import _tune
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2200, 2200))
try:
    with Ledger(Path(sys.argv[1])) as ledger:
        _tune(ledger)
except LedgerError as error:
    print(error)
"""


@pytest.mark.slow(seconds=3)
def test_a_batch_that_fits_only_in_part_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True
    )
    assert "File too large; nothing of this batch was recorded" in done.stdout
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2200
    contents = read(path)
    assert contents.problems == []
    kinds = [record["kind"] for record in contents.records]
    assert kinds == ["trial"] * BATCH + ["round"]
    with Ledger(path) as ledger:
        _tune(ledger)
    assert path.read_bytes() == _whole(tmp_path)


def test_a_read_only_disk_is_one_clear_error(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)], capture_output=True
        ).returncode
    ):
        disk.chmod(0o555)
    try:
        with pytest.raises(LedgerError, match=r"(Read-only|Permission).*another output directory"):
            Ledger(disk / "ledger.jsonl")
    finally:
        subprocess.run(["umount", "-l", str(disk)], capture_output=True)
