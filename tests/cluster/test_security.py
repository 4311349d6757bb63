"""Tests access to a cluster: only holders of a key get an answer, also on loopback."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed.comm import connect as connect_to

from tests.cluster.clusters import COMMAND, DaskCluster, client_settings
from tests.processes import listening
from tests.reliability.test_neighbours import as_nobody
from tests.sharing import free_port
from tilewright.targets.cluster import ClusterError
from tilewright.targets.cluster.connection import Cluster, check_address, dask_security
from tilewright.targets.cluster.keys import AUTHORITY, CLIENT, NODE, make_keys

pytestmark = pytest.mark.attack


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.worker("worker", "--resources", "board=1")
        yield cluster


@pytest.fixture(scope="module")
def addresses(cluster: DaskCluster) -> list[str]:
    """Return the addresses of the scheduler and of the worker."""
    with cluster.client() as client:
        return [cluster.address, *client.scheduler_info()["workers"]]


def _answer(address: str, **arguments: Any) -> str:
    """Return a node's answer to the simplest request, or "" if it closes the connection."""

    async def ask() -> str:
        comm = await connect_to(address, timeout=5, **arguments)
        try:
            await comm.write({"op": "identity", "reply": True})
            return str(await asyncio.wait_for(comm.read(), 10))
        finally:
            comm.abort()

    with suppress(OSError, TypeError, ssl.SSLError, asyncio.TimeoutError, RuntimeError):
        return asyncio.run(ask())
    return ""


def _context(authority: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = False
    if key is not None:
        context.load_cert_chain(key)
    return context


@pytest.mark.slow(seconds=3)
def test_holders_of_a_key_are_answered(cluster: DaskCluster, addresses: list[str]) -> None:
    for address in addresses:
        context = _context(cluster.keys / AUTHORITY, cluster.keys / CLIENT)
        assert "'id'" in _answer(address, ssl_context=context)


@pytest.mark.slow(seconds=3)
def test_nobody_else_is_answered(
    cluster: DaskCluster, addresses: list[str], tmp_path: Path
) -> None:
    """Neither the scheduler nor a worker answers a stranger.

    The stranger has no certificate, or one of another authority, or does not use TLS.
    """
    make_keys(other := tmp_path / "other")
    nothing = _context(cluster.keys / AUTHORITY, None)
    foreign = _context(cluster.keys / AUTHORITY, other / CLIENT)
    for address in addresses:
        assert _answer(address, ssl_context=nothing) == ""
        assert _answer(address, ssl_context=foreign) == ""
        assert _answer(address.replace("tls://", "tcp://")) == ""


@pytest.mark.slow(seconds=3)
def test_the_key_of_a_command_opens_no_port(cluster: DaskCluster) -> None:
    """The holder of a command's key cannot pose as a scheduler: commands refuse its certificate."""

    async def pose() -> str:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server.load_cert_chain(cluster.keys / CLIENT)
        heard = list[bytes]()

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(1000))
            writer.close()

        async with await asyncio.start_server(hear, "127.0.0.1", port := free_port(), ssl=server):
            mine = _context(cluster.keys / AUTHORITY, cluster.keys / CLIENT)
            with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate"):
                await asyncio.open_connection("127.0.0.1", port, ssl=mine)
        return b"".join(heard).decode()

    assert asyncio.run(pose()) == ""


@pytest.mark.slow(seconds=3)
def test_everything_listens_on_loopback_alone(cluster: DaskCluster) -> None:
    for name in "scheduler", "worker":
        result = listening(cluster.processes[name].pid)
        assert {address.ip for address in result} == {"127.0.0.1"}, name


@pytest.mark.slow(seconds=8)
def test_processes_of_this_machine_have_keys_of_their_own() -> None:
    """`local:N` listens on loopback and uses a certificate that exists only in memory."""
    cluster = Cluster("local:1")
    try:
        assert cluster._local is not None
        addresses = [cluster._local.scheduler_address, *cluster._workers()]
        assert all(address.startswith("tls://127.0.0.1:") for address in addresses)
        for address in addresses:
            assert _answer(address.replace("tls://", "tcp://")) == ""
        assert {item.ip for item in listening(os.getpid()) if item.port > 0} <= {"127.0.0.1"}
    finally:
        cluster.close()


# -- keys --------------------------------------------------------------------------------------


def test_keys_are_for_their_user_alone(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    before = os.umask(0)
    try:
        make_keys(keys)
    finally:
        os.umask(before)
    assert {path.name for path in keys.iterdir()} == {AUTHORITY, NODE, CLIENT}
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys.iterdir()} == {0o600}
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert b"PRIVATE KEY" not in (keys / AUTHORITY).read_bytes()
    with pytest.raises(FileExistsError, match="exists already"):
        make_keys(keys)
    assert [path.name for path in keys.parent.iterdir()] == [keys.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_another_user_of_the_machine_reads_no_key(tmp_path: Path) -> None:
    make_keys(keys := tmp_path / "keys")
    for folder in (tmp_path, *tmp_path.parents):  # like home folders that others may read
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o005)

    def look() -> list[str]:
        results = []
        for name in (AUTHORITY, NODE, CLIENT):
            with suppress(PermissionError):
                results.append((keys / name).read_text())
        return results

    assert as_nobody(look) == []


@pytest.mark.slow(seconds=2)
def test_the_command_prints_settings_that_dask_takes(tmp_path: Path, cluster: DaskCluster) -> None:
    """The scheduler and the worker of the fixture already run with the printed settings."""
    for again in False, True:
        made = cluster.run(f"keys-{again}", *COMMAND, "cluster", "keys", str(tmp_path / "new"))
        assert made.wait(60) == (2 if again else 0)
    said = cluster.said("keys-False")
    assert f"TLS__CA_FILE={tmp_path}/new/{AUTHORITY}" in said
    assert "REQUIRE_ENCRYPTION=true" in said
    assert "Whoever holds a key can run code on the workers" in said
    assert "a folder that does not exist yet" in cluster.said("keys-True")


# -- errors give one sentence ------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["host", "h:1", "http://host:80", "tcp://h:1", "tls://u@h:1", "tls://h:1,tls://h:2",
     "tls://:1", "tls://h:123456", "local:0", "local:", "local:-1"],
)  # fmt: skip
def test_addresses_without_tls_and_nonsense_are_refused(address: str) -> None:
    with pytest.raises(ClusterError, match="write tls://HOST:PORT"):
        check_address(address)


def test_what_is_an_address() -> None:
    for address in "tls://h:1", "tls://b.example:8786", "tls://[::1]:2", "local:1", "local:16":
        check_address(address)


def test_missing_settings_are_named(tmp_path: Path) -> None:
    make_keys(keys := tmp_path / "keys")
    nothing = {"distributed.comm.tls.ca-file": None, "distributed.comm.tls.client.cert": None}
    with dask.config.set(nothing):
        with pytest.raises(ClusterError, match=r"TLS__CA_FILE is not set: 'tilewright cluster"):
            dask_security("client")
        with (
            dask.config.set({"distributed.comm.tls.ca-file": str(keys / AUTHORITY)}),
            pytest.raises(ClusterError, match="TLS__CLIENT__CERT is not set"),
        ):
            dask_security("client")
    with client_settings(keys):
        (keys / CLIENT).write_text("no key")
        with pytest.raises(ClusterError, match="name no key that matches the certificate"):
            dask_security("client")
        (keys / CLIENT).unlink()
        with pytest.raises(ClusterError, match="does not exist"):
            dask_security("client")


@pytest.mark.slow(seconds=3)
def test_keys_of_another_cluster_are_one_sentence(
    cluster: DaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(other := tmp_path / "other")
    monkeypatch.setattr("tilewright.targets.cluster.connection.REACH_SECONDS", 2.0)
    with (
        client_settings(other),
        pytest.raises(ClusterError, match="do not accept each other's certificates"),
    ):
        Cluster(cluster.address)


@pytest.mark.slow(seconds=3)
def test_a_command_with_a_foreign_certificate_is_one_sentence(
    cluster: DaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command trusts the scheduler, but the scheduler does not trust the command."""
    make_keys(other := tmp_path / "other")
    monkeypatch.setattr("tilewright.targets.cluster.connection.REACH_SECONDS", 2.0)
    foreign = {
        f"distributed.comm.tls.client.{item}": str(other / CLIENT) for item in ("cert", "key")
    }
    with (
        dask.config.set(foreign),
        pytest.raises(ClusterError, match="do not accept each other's certificates"),
    ):
        Cluster(cluster.address)


@pytest.mark.slow(seconds=3)
def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.targets.cluster.connection.REACH_SECONDS", 1.0)
    make_keys(keys := tmp_path / "keys")
    with (
        client_settings(keys),
        pytest.raises(ClusterError, match=r"no Dask scheduler responds at tls://127.* within 1 s"),
    ):
        Cluster(f"tls://127.0.0.1:{free_port()}")


@pytest.mark.slow(seconds=3)
def test_a_server_that_says_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.targets.cluster.connection.REACH_SECONDS", 1.0)
    make_keys(keys := tmp_path / "keys")
    with socket.create_server(("127.0.0.1", 0)) as silent, client_settings(keys):
        port = silent.getsockname()[1]
        with pytest.raises(ClusterError, match="no Dask scheduler responds at"):
            Cluster(f"tls://127.0.0.1:{port}")
