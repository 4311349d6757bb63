"""Checks that a target on a cluster gives local results, even if workers die or restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.clusters import DaskCluster, package
from tilewright.core.child_process import Limits
from tilewright.targets import make_target
from tilewright.targets.base import Lowered, Measurements, Target
from tilewright.targets.capabilities import Baseline, Enumerates, MeasuresInOnePass, capability
from tilewright.targets.cluster import ClusterError, connection
from tilewright.targets.cluster.connection import connect
from tilewright.targets.cluster.remote_worker import lower_and_measure
from tilewright.targets.cluster.target import ClusterTarget, on_cluster, recipe_of
from tilewright.targets.fault_injection import FaultyTarget
from tilewright.targets.subprocess_target import IsolatedTarget
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import parse_workload

CONV = parse_workload("conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1")
FACTORY = "tilewright.targets.fault_injection:make_target"
pytestmark = pytest.mark.slow(seconds=2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """Yield a cluster of two workers, which no test kills."""
    with DaskCluster(tmp_path_factory.mktemp("cluster")) as cluster:
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
def test_a_batch_is_lowered_and_measured_as_here(cluster: DaskCluster, space: str) -> None:
    here = make_target("vta-pynq", space)
    away = on_cluster(here, "vta-pynq", space, 0, cluster.address)
    size = here.space(CONV).size
    configs = here.space(CONV).unravel(np.linspace(0, size - 1, 24).astype(np.int64))
    for _ in range(2):  # the first call only learns the time per row
        ours, theirs = away.lower(CONV, configs), here.lower(CONV, configs)
        _same_lowered(ours, theirs)
        assert not ours.ok.all()
        assert ours.ok.any()
        assert ours.programs == {}, "programs stay with the workers"
        _same(away.measure(ours), here.measure(theirs))
    at_once = capability(away, MeasuresInOnePass)
    assert at_once is not None
    counted = list[int]()
    ours, measured = at_once.lower_and_measure(CONV, configs, counted.append)
    _same_lowered(ours, here.lower(CONV, configs))
    _same(measured, here.measure(here.lower(CONV, configs)))
    assert sum(counted) == len(configs)
    assert (away.name, away.fingerprint) == (here.name, here.fingerprint)
    assert capability(away, Baseline) is not None
    assert capability(away, Enumerates) is None


def test_a_long_batch_goes_to_all_workers(cluster: DaskCluster) -> None:
    """Four rows take half a second each, and each worker measures two of them."""
    faults = dict.fromkeys(range(4), "late")
    here = FaultyTarget(faults, 0.5)  # type: ignore[arg-type]
    away = _faulty(here, {"faults": _text(faults), "late_seconds": 0.5}, cluster)
    configs = here.space(CONV).unravel(np.arange(4))
    lowered = away.lower(CONV, configs)
    thread = threading.Thread(target=away.measure, args=(lowered,))
    thread.start()
    cluster.wait_until_busy(2)
    thread.join(60)


def test_a_file_that_only_the_command_has(cluster: DaskCluster, tmp_path: Path) -> None:
    spec = VtaSpec.from_mapping({"name": "narrow", "LOG_WGT_BUFF_SIZE": 17})
    (file := tmp_path / "narrow.json").write_text(spec.model_dump_json(by_alias=True))
    here = make_target(str(file))
    recipe = recipe_of(here, str(file), "extended")
    file.unlink()
    assert str(tmp_path) not in str(recipe)
    away = ClusterTarget(here, recipe, cluster.address)
    configs = here.space(CONV).unravel(np.arange(6))
    _same(away.measure(away.lower(CONV, configs)), here.measure(here.lower(CONV, configs)))


def _text(faults: dict[int, str]) -> dict[str, str]:
    return {str(row): fault for row, fault in faults.items()}


def _faulty(
    here: Target, arguments: dict[str, Any], cluster: DaskCluster, isolate: float = 0.0
) -> ClusterTarget:
    recipe = {"kind": "faulty", "preset": "", "space": "", "specification": arguments}
    return ClusterTarget(here, recipe, cluster.address, isolate)  # type: ignore[arg-type]


def test_with_isolate_a_config_that_crashes_costs_that_config(cluster: DaskCluster) -> None:
    faults = {2: "crash", 4: "raise", 6: "nonsense", 9: "crash_lowering"}
    arguments = {"faults": _text(faults)}
    here = FaultyTarget(faults)  # type: ignore[arg-type]
    alone = IsolatedTarget(FACTORY, arguments, Limits(2.0))  # type: ignore[arg-type]
    away = _faulty(here, arguments, cluster, isolate=2.0)
    configs = here.space(CONV).unravel(np.arange(12))
    ours, theirs = away.lower(CONV, configs), alone.lower(CONV, configs)
    _same_lowered(ours, theirs)
    _same(away.measure(ours), alone.measure(theirs))
    alone.close()


def test_a_worker_with_another_target_is_refused(cluster: DaskCluster) -> None:
    here, other = make_target("vta-de10"), make_target("vta-pynq")
    away = ClusterTarget(here, recipe_of(other, "vta-pynq", "extended"), cluster.address)
    with pytest.raises(ClusterError, match=r"its target .* has the fingerprint .*other sources"):
        away.lower(CONV, here.space(CONV).unravel(np.arange(2)))


def test_a_worker_with_another_version_is_refused(tmp_path: Path) -> None:
    here = make_target("vta-pynq")
    configs = here.space(CONV).unravel(np.arange(2))
    with DaskCluster(tmp_path) as own:
        own.worker("old", path=package(tmp_path / "old", "tilewright", "0.0.1"))
        away = on_cluster(here, "vta-pynq", "extended", 0, own.address)
        with pytest.raises(ClusterError, match=r"it has Tilewright 0\.0\.1, but the command has"):
            away.lower(CONV, configs)
        own.kill("old")
        own.worker("new")
        away.lower(CONV, configs)


def _answer(**changes: Any) -> str:
    """Return a worker's reason for refusing a call with changed arguments."""
    here = make_target("vta-pynq")
    call: dict[str, Any] = {
        "target": ClusterTarget(here, recipe_of(here, "vta-pynq", "extended"), "").specification,
        "workload": CONV.to_json(),
        "configs": here.space(CONV).unravel(np.arange(2)),
    }
    header, arrays = lower_and_measure(**{**call, **changes})
    assert arrays == {}
    return str(header["refused"])


def test_what_is_no_call_is_a_sentence() -> None:
    target = {"preset": "", "space": "", "specification": None, "isolate": 0, "fingerprint": ""}
    from importlib.metadata import version

    target["version"] = version("tilewright")
    for changes, said in [
        ({"target": target | {"kind": "os:mkdir", "preset": "x"}}, "of the kind"),
        ({"target": target | {"kind": "vta", "preset": "/etc/passwd"}}, "no target '/etc/passwd'"),
        ({"configs": np.full((2, 3), 1 << 20)}, "configs are outside of the space"),
        ({"configs": np.zeros((2, 2), np.float64)}, "configs are outside of the space"),
    ]:
        assert said in _answer(**changes)


# -- workers and schedulers that start and stop ------------------------------------------------


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    """Both workers measure a part of a long batch. If one is killed, the other repeats its part."""
    faults = dict.fromkeys(range(8), "late")
    here = FaultyTarget(faults, 0.5)  # type: ignore[arg-type]
    configs = here.space(CONV).unravel(np.arange(8))
    results: list[Measurements] = []
    with DaskCluster(tmp_path) as own:
        own.worker("victim")
        own.worker("other")
        away = _faulty(here, {"faults": _text(faults), "late_seconds": 0.5}, own)
        lowered = away.lower(CONV, configs)
        thread = threading.Thread(target=lambda: results.append(away.measure(lowered)))
        thread.start()
        own.wait_until_busy(2)
        own.kill("victim")
        thread.join(120)
        assert connect(own.address).slots() == 1
    _same(results[0], FaultyTarget({}).measure(FaultyTarget({}).lower(CONV, configs)))


def test_without_a_worker_the_run_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WORKER_SECONDS", 3.0)
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.5)
    here = make_target("vta-pynq")
    configs = here.space(CONV).unravel(np.arange(2))
    with DaskCluster(tmp_path) as own:
        away = on_cluster(here, "vta-pynq", "extended", 0, own.address)
        for _ in range(2):  # first there is no worker yet, later it is gone
            with pytest.raises(
                ClusterError,
                match=r"has had no worker for 3 s; .* resume from the recorded measurements",
            ):
                away.lower(CONV, configs)
            own.worker("only")
            away.lower(CONV, configs)
            own.kill("only")


def test_a_restarted_scheduler_loses_nothing(tmp_path: Path) -> None:
    """A call in progress is repeated as soon as scheduler and worker are back."""
    faults = dict.fromkeys(range(4), "late")
    here = FaultyTarget(faults, 1.0)  # type: ignore[arg-type]
    configs = here.space(CONV).unravel(np.arange(4))
    results: list[Measurements] = []
    with DaskCluster(tmp_path) as own:
        own.worker("only")
        away = _faulty(here, {"faults": _text(faults), "late_seconds": 1.0}, own)
        lowered = away.lower(CONV, configs)
        thread = threading.Thread(target=lambda: results.append(away.measure(lowered)))
        thread.start()
        own.wait_until_busy()
        own.kill("scheduler")
        own.kill("only")
        own.scheduler()
        own.worker("only")
        thread.join(120)
    _same(results[0], FaultyTarget({}).measure(FaultyTarget({}).lower(CONV, configs)))


@pytest.mark.nightly(seconds=10)
def test_a_scheduler_that_stays_away_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WORKER_SECONDS", 3.0)
    monkeypatch.setattr(connection, "REACH_SECONDS", 1.0)
    here = make_target("vta-pynq")
    configs = here.space(CONV).unravel(np.arange(2))
    with DaskCluster(tmp_path) as own:
        own.worker("only")
        away = on_cluster(here, "vta-pynq", "extended", 0, own.address)
        away.lower(CONV, configs)
        own.kill("scheduler")
        with pytest.raises(ClusterError, match=r"the scheduler at .* has been unreachable for 3 s"):
            away.lower(CONV, configs)


@pytest.mark.nightly(seconds=20)
def test_a_batch_that_ends_every_worker_is_one_sentence(tmp_path: Path) -> None:
    faults = {1: "crash"}
    here = FaultyTarget(faults)  # type: ignore[arg-type]
    configs = here.space(CONV).unravel(np.arange(2))
    with DaskCluster(tmp_path) as own:
        for name in "abcd":
            own.worker(name)
        away = _faulty(here, {"faults": _text(faults)}, own)
        lowered = away.lower(CONV, configs)
        with pytest.raises(ClusterError, match=r"the same batch crashed 4 workers .*--isolate"):
            away.measure(lowered)


def test_workers_beside_a_board_do_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WORKER_SECONDS", 1.0)
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(connection, "SEEN_SECONDS", 0.0)
    here = make_target("vta-pynq")
    configs = here.space(CONV).unravel(np.arange(2))
    with DaskCluster(tmp_path) as own:
        own.worker("board", "--resources", "board=1")
        away = on_cluster(here, "vta-pynq", "extended", 0, own.address)
        assert connect(own.address).slots() == 0
        with pytest.raises(ClusterError, match="has had no worker for 1 s"):
            away.lower(CONV, configs)
        own.worker("beside")
        assert connect(own.address).slots() == 1
        away.lower(CONV, configs)
