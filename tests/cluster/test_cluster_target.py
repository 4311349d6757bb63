"""Checks that a target on a cluster gives what it gives here, whatever becomes of its workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.clusters import Cluster
from tests.sharing import free_port
from tilewright.core.child_process import Limits
from tilewright.targets import make_target
from tilewright.targets.base import Lowered, Measurements, Target
from tilewright.targets.capabilities import Baseline, Enumerates, MeasuresInOnePass, capability
from tilewright.targets.cluster import ClusterError, connection
from tilewright.targets.cluster.connection import check_address, connect
from tilewright.targets.cluster.keys import VARIABLE, make_keys
from tilewright.targets.cluster.target import ClusterTarget, recipe_of
from tilewright.targets.fault_injection import FaultyTarget
from tilewright.targets.subprocess_target import IsolatedTarget
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import parse_workload

CONV = parse_workload("conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1")
FACTORY = "tilewright.targets.fault_injection:make_target"
pytestmark = pytest.mark.slow(seconds=1.5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers that nobody kills."""
    with Cluster(tmp_path_factory.mktemp("cluster"), "one", "two") as cluster:
        cluster.worker("one")
        cluster.worker("two")
        yield cluster


def _same(ours: Measurements, theirs: Measurements) -> None:
    assert ours.status.tolist() == theirs.status.tolist()
    assert ours.reason.tolist() == theirs.reason.tolist()
    np.testing.assert_array_equal(ours.cycles, theirs.cycles)
    np.testing.assert_array_equal(ours.seconds, theirs.seconds)
    assert ours.counters.keys() == theirs.counters.keys()
    for name, values in ours.counters.items():
        np.testing.assert_array_equal(values, theirs.counters[name])


def _same_lowered(ours: Lowered, theirs: Lowered) -> None:
    assert ours.failures.tolist() == theirs.failures.tolist()
    assert ours.reasons.tolist() == theirs.reasons.tolist()
    assert ours.hidden.columns == theirs.hidden.columns
    np.testing.assert_array_equal(ours.hidden.matrix, theirs.hidden.matrix)


@pytest.mark.parametrize("space", ["extended", "stock"])
def test_a_batch_is_lowered_and_measured_as_here(cluster: Cluster, space: str) -> None:
    here = make_target("vta-pynq", space)
    away = ClusterTarget(here, recipe_of(here, "vta-pynq", space, 0), cluster.address)
    size = here.space(CONV).size
    configs = here.space(CONV).unravel(np.linspace(0, size - 1, 24).astype(np.int64))
    for _ in range(2):  # at first nobody knows how long a row takes
        ours, theirs = away.lower(CONV, configs), here.lower(CONV, configs)
        _same_lowered(ours, theirs)
        assert not ours.ok.all()
        assert ours.ok.any()
        assert ours.programs == {}, "they stay with the workers"
        _same(away.measure(ours), here.measure(theirs))
    assert (away.name, away.fingerprint) == (here.name, here.fingerprint)
    assert capability(away, Baseline) is not None
    assert capability(away, Enumerates) is None
    assert capability(away, MeasuresInOnePass) is None


def test_a_file_that_only_the_command_has(cluster: Cluster, tmp_path: Path) -> None:
    spec = VtaSpec.from_mapping({"name": "narrow", "LOG_WGT_BUFF_SIZE": 17})
    (file := tmp_path / "narrow.json").write_text(spec.model_dump_json(by_alias=True))
    here = make_target(str(file))
    recipe = recipe_of(here, str(file), "extended", 0)
    file.unlink()
    assert str(tmp_path) not in str(recipe)
    away = ClusterTarget(here, recipe, cluster.address)
    configs = here.space(CONV).unravel(np.arange(6))
    _same(away.measure(away.lower(CONV, configs)), here.measure(here.lower(CONV, configs)))


def _faulty(
    here: Target, arguments: dict[str, object], cluster: Cluster, isolate: float = 0.0
) -> ClusterTarget:
    recipe = {"kind": "faulty", "preset": "", "space": "", "specification": arguments}
    return ClusterTarget(here, recipe | {"isolate": isolate}, cluster.address)  # type: ignore[arg-type]


def test_what_a_config_does_to_its_process_costs_that_config(cluster: Cluster) -> None:
    faults = {2: "crash", 4: "raise", 6: "nonsense", 9: "crash_lowering"}
    arguments = {"faults": {str(k): v for k, v in faults.items()}}
    here = FaultyTarget(faults)  # type: ignore[arg-type]
    alone = IsolatedTarget(FACTORY, arguments, Limits(2.0))  # type: ignore[arg-type]
    away = _faulty(here, arguments, cluster, isolate=2.0)  # type: ignore[arg-type]
    configs = here.space(CONV).unravel(np.arange(12))
    ours, theirs = away.lower(CONV, configs), alone.lower(CONV, configs)
    _same_lowered(ours, theirs)
    _same(away.measure(ours), alone.measure(theirs))
    alone.close()


def test_a_worker_with_something_else_is_refused(cluster: Cluster) -> None:
    here, other = make_target("vta-de10"), make_target("vta-pynq")
    away = ClusterTarget(here, recipe_of(other, "vta-pynq", "extended", 0), cluster.address)
    with pytest.raises(ClusterError, match=r"its target has the fingerprint .* another version"):
        away.lower(CONV, here.space(CONV).unravel(np.arange(2)))


def _called(cluster: Cluster, **changes: object) -> str:
    """What a worker says to a call that no command of ours makes."""
    here = make_target("vta-pynq")
    header = {
        "call": "lower", "recipe": recipe_of(here, "vta-pynq", "extended", 0),
        "fingerprint": here.fingerprint, "workload": CONV.to_json(),
    }  # fmt: skip
    configs = changes.pop("configs", here.space(CONV).unravel(np.arange(2)))
    with pytest.raises(ClusterError) as caught:
        connect(cluster.address).call({**header, **changes}, {"configs": configs})  # type: ignore[arg-type,dict-item]
    return str(caught.value)


@pytest.mark.attack
def test_a_call_names_what_there_is_and_no_file_or_code(cluster: Cluster, tmp_path: Path) -> None:
    """As the holder of a command's key may make it."""
    mark = tmp_path / "mark"
    recipe = {"preset": "", "space": "", "specification": None, "isolate": 0}
    for more, said in [
        ({"call": "os.mkdir"}, "there is no call 'os.mkdir'"),
        ({"recipe": {"factory": "os:mkdir", "arguments": {"path": str(mark)}}}, "'isolate'"),
        ({"recipe": recipe | {"kind": "os:mkdir", "preset": str(mark)}}, "no target of the kind"),
        ({"recipe": recipe | {"kind": "vta", "preset": str(mark)}}, f"is called '{mark}'"),
        ({"recipe": recipe | {"kind": "replay", "preset": "/etc/passwd"}}, "/etc/passwd'"),
        ({"recipe": recipe | {"kind": "vta", "specification": {"name": 3}}}, "ValidationError: 1 "),
        ({"workload": {"operator": "conv2d"}}, "cannot be used"),
        ({"configs": np.full((2, 3), 1 << 20)}, "the configs are not of its target's space"),
        ({"configs": np.zeros((2, 2), np.float64)}, "the configs are not of its target's space"),
    ]:
        assert said in _called(cluster, **more)  # type: ignore[arg-type]
    assert not mark.exists()


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    """A batch that takes long goes to both; one is killed at it, the other does that again."""
    faults = dict.fromkeys(range(8), "late")
    arguments = {"faults": {str(k): v for k, v in faults.items()}, "late_seconds": 0.5}
    here = FaultyTarget(faults, 0.5)  # type: ignore[arg-type]
    configs = here.space(CONV).unravel(np.arange(8))
    found: list[Measurements] = []
    with Cluster(tmp_path, "victim", "other") as own:
        victim, _ = own.worker("victim"), own.worker("other")
        away = _faulty(here, arguments, own)  # type: ignore[arg-type]
        lowered = away.lower(CONV, configs)
        thread = threading.Thread(target=lambda: found.append(away.measure(lowered)))
        thread.start()
        cluster = connect(own.address)
        end = time.monotonic() + 120
        while [each.calls for each in cluster._workers] != [1, 1]:
            assert time.monotonic() < end
        victim.kill()
        thread.join(60)
        assert cluster.slots() == 1
    _same(found[0], FaultyTarget({}).measure(FaultyTarget({}).lower(CONV, configs)))


def test_a_cluster_that_is_lost_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WORKER_SECONDS", 3.0)
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(connection, "REACH_SECONDS", 1.0)
    here = make_target("vta-pynq")
    configs = here.space(CONV).unravel(np.arange(2))
    with Cluster(tmp_path, "only") as own:
        worker = own.worker("only")
        away = ClusterTarget(here, recipe_of(here, "vta-pynq", "extended", 0), own.address)
        away.lower(CONV, configs)
        for _ in range(2):  # while it goes, and when nobody is there
            worker.kill()
            with pytest.raises(
                ClusterError, match=r"has no worker for 3 s; .* resumes from the ledger"
            ):
                away.lower(CONV, configs)
        own.worker("only")
        away.lower(CONV, configs)


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REACH_SECONDS", 1.0)
    make_keys(tmp_path / "keys")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "keys"))
    with pytest.raises(ClusterError, match=r"no worker answers at 127.* within 1 s .*refused"):
        connect(f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    "address",
    ["host", "http://host:80", "tcp://h:1", "a b:1", "u@h:1", "h:1,", ":1", "h:123456"],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ClusterError, match="write HOST:PORT"):
        check_address(address)


def test_what_is_an_address() -> None:
    assert check_address("h:1, tls://b.example:8786,[::1]:2") == [
        ("h", 1), ("b.example", 8786), ("::1", 2),
    ]  # fmt: skip
