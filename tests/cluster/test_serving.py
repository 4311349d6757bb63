"""Tests who gets to a worker, and what it takes: holders of a command's key, and plain data."""

from __future__ import annotations

import io
import json
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.clusters import COMMAND, Cluster
from tests.processes import listening
from tests.reliability.test_neighbours import as_nobody
from tilewright.core.child_process import RpcNonsense, encode
from tilewright.core.files import pack_files
from tilewright.targets.cluster import ClusterError, channel, connection
from tilewright.targets.cluster.channel import Channel, dial
from tilewright.targets.cluster.connection import connect
from tilewright.targets.cluster.keys import (
    AUTHORITY,
    VARIABLE,
    WORKER,
    command_context,
    keys_folder,
    make_keys,
)
from tilewright.targets.cluster.keys import (
    COMMAND as COMMAND_KEY,
)
from tilewright.targets.cluster.serve import serve

pytestmark = pytest.mark.attack


class Echo:
    """Answers with what it was asked, after `seconds`; raises where it is asked to."""

    slots = 1

    def __init__(self) -> None:
        self.asked, self.at_work, self.most_at_work = 0, 0, 0

    def about(self) -> dict[str, Any]:
        return {"offers": "", "asked": self.asked}

    def answer(self, header: dict[str, Any], arrays: Any) -> Any:
        self.asked += 1
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        time.sleep(header.get("seconds", 0))
        self.at_work -= 1
        if "raise" in header:
            raise ValueError(header["raise"])
        return header, arrays


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Those of the user, made by the first worker."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return keys_folder()


@pytest.fixture
def service() -> Echo:
    return Echo()


@pytest.fixture
def port(service: Echo, keys: Path) -> int:
    """Of a worker in this process."""
    told: list[str] = []
    ready = threading.Event()

    def tell(address: str) -> None:
        told.append(address)
        ready.set()

    threading.Thread(target=serve, args=(service, "127.0.0.1", 0, tell), daemon=True).start()
    assert ready.wait(30)
    return int(told[0].rpartition(":")[2])


@pytest.fixture
def link(port: int, keys: Path) -> Iterator[Channel]:
    """A command's connection."""
    found = dial("127.0.0.1", port, command_context(keys), 10)
    yield found
    found.close()


def test_a_call_is_answered(link: Channel, service: Echo) -> None:
    sent = {"a": np.arange(6).reshape(2, 3), "text": np.array(["x", "yy"], object)}
    header, arrays = link.ask({"call": "any", "deep": [1, {"b": None}]}, sent)
    assert header == {"call": "any", "deep": [1, {"b": None}]}
    np.testing.assert_array_equal(arrays["a"], sent["a"])
    assert arrays["text"].tolist() == ["x", "yy"]
    header, _ = link.ask({"call": "about"}, {})
    assert header == {"offers": "", "slots": 1, "asked": 1}
    assert link.ask({"raise": "x"}, {})[0] == {"unusable": "ValueError: x"}


def _pickle(mark: Path) -> bytes:
    """What makes a folder where it is unpickled."""
    return b"cos\nmkdir\n(S'" + os.fsencode(mark) + b"'\ntR."


def _objects(mark: Path) -> bytes:
    """A message with an array that is a pickle."""
    npy = io.BytesIO()
    about = {"descr": "|O", "fortran_order": False, "shape": (1,)}
    np.lib.format.write_array_header_1_0(npy, about)
    packed = pack_files({"configs.npy": npy.getvalue() + _pickle(mark)})
    head = json.dumps({"call": "measure"}).encode()
    return len(head).to_bytes(8, "little") + len(packed).to_bytes(8, "little") + head + packed


def _alone(mark: Path) -> bytes:
    return _pickle(mark) * 9


def _header(mark: Path) -> bytes:
    return len(_pickle(mark)).to_bytes(8, "little") + bytes(8) + _pickle(mark)


@pytest.mark.parametrize("form", [_alone, _header, _objects])
def test_a_pickle_is_refused(
    link: Channel, service: Echo, tmp_path: Path, form: Callable[[Path], bytes]
) -> None:
    """From somebody with a key: the connection is closed, and nothing ran."""
    mark = tmp_path / "mark"
    link._link.sendall(form(mark))
    with pytest.raises((EOFError, OSError)):
        link.receive()
    assert (service.asked, mark.exists()) == (0, False)
    (tmp_path / "file").write_bytes(_pickle(mark))
    subprocess.run([sys.executable, "-m", "pickle", str(tmp_path / "file")], check=True)
    assert mark.exists(), "unpickled, it leaves a mark"


def test_an_answer_that_is_a_pickle_is_refused(tmp_path: Path) -> None:
    """From a worker that lies."""
    ours, theirs = socket.socketpair()
    theirs.sendall(_objects(tmp_path / "mark"))
    with pytest.raises(RpcNonsense):
        Channel(ours).receive()  # type: ignore[arg-type]
    assert not (tmp_path / "mark").exists()


def _other_keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "other")
    return tmp_path / "other"


def _without_key(tmp_path: Path, keys: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(keys / AUTHORITY)
    return context


def _with_the_workers_key(tmp_path: Path, keys: Path) -> ssl.SSLContext:
    context = _without_key(tmp_path, keys)
    context.load_cert_chain(keys / WORKER)
    return context


def _with_other_keys(tmp_path: Path, keys: Path) -> ssl.SSLContext:
    context = _without_key(tmp_path, keys)
    context.load_cert_chain(_other_keys(tmp_path) / COMMAND_KEY)
    return context


@pytest.mark.parametrize("who", [_without_key, _with_the_workers_key, _with_other_keys])
def test_nobody_else_is_answered(
    port: int, keys: Path, service: Echo, tmp_path: Path, who: Callable[..., ssl.SSLContext]
) -> None:
    with pytest.raises((OSError, EOFError)):
        dial("127.0.0.1", port, who(tmp_path, keys), 10).ask({"call": "x"}, {})
    assert service.asked == 0


def test_without_tls_nobody_is_answered(port: int, service: Echo) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(encode({"call": "x"}, {}))
        with pytest.raises((ConnectionError, ssl.SSLError, AssertionError)):  # an alert, or the end
            assert b"call" in plain.recv(1000)
    assert service.asked == 0


def test_a_server_that_took_the_port_is_told_nothing(keys: Path, tmp_path: Path) -> None:
    """Nor is one with keys of another authority, or with a command's."""
    make_keys(keys)
    heard: list[bytes] = []
    for folder, own in ((_other_keys(tmp_path), WORKER), (keys, COMMAND_KEY)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / own)
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def hear(listener: socket.socket = listener, context: Any = context) -> None:
                with suppress(OSError):
                    secure = context.wrap_socket(listener.accept()[0], server_side=True)
                    heard.append(secure.recv(1000))

            thread = threading.Thread(target=hear)
            thread.start()
            with pytest.raises(ssl.SSLError):
                dial("127.0.0.1", listener.getsockname()[1], command_context(keys), 10)
            thread.join(10)
    assert not any(heard)


def test_who_says_nothing_keeps_nobody_waiting(port: int, link: Channel) -> None:
    with (
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)),
    ):
        assert link.ask({"call": "x"}, {})[0] == {"call": "x"}


def test_a_byte_now_and_then_does_not_prolong_the_handshake(
    port: int, link: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.targets.cluster.serve.HANDSHAKE_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=0.1) as slow:
        slow.sendall(b"\x16\x03\x01\x02\x00")  # a handshake of 512 bytes begins
        end, hung_up = time.monotonic() + 120, False
        while not hung_up and time.monotonic() < end:
            try:
                slow.sendall(b"\x00")
                hung_up = slow.recv(100) == b""
            except TimeoutError:
                continue
            except OSError:
                hung_up = True
        assert hung_up
    assert link.ask({"call": "x"}, {})[0] == {"call": "x"}


@pytest.mark.parametrize("lengths", [(1 << 40, 0), (0, 1 << 40), ((1 << 64) - 1, 1)])
def test_an_enormous_length_is_refused_before_it_is_read(
    port: int, link: Channel, keys: Path, lengths: tuple[int, int]
) -> None:
    link._link.sendall(b"".join(length.to_bytes(8, "little") for length in lengths))
    with pytest.raises((EOFError, OSError)):
        link.receive()
    again = dial("127.0.0.1", port, command_context(keys), 10)
    assert again.ask({"call": "x"}, {})[0] == {"call": "x"}
    again.close()


def test_a_message_that_never_ends_keeps_nobody_waiting(
    port: int, link: Channel, keys: Path
) -> None:
    """From somebody with a key, who stops in the middle of it."""
    link._link.sendall((1 << 20).to_bytes(8, "little") + bytes(8) + b"{")
    other = dial("127.0.0.1", port, command_context(keys), 10)
    assert other.ask({"call": "x"}, {})[0] == {"call": "x"}
    other.close()


def test_one_call_at_a_time_and_beats_meanwhile(
    port: int, keys: Path, service: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each side says nothing for longer than the other would wait, but for the beats."""
    monkeypatch.setattr("tilewright.targets.cluster.serve.BEAT_SECONDS", 0.05)
    monkeypatch.setattr(channel, "SILENT_SECONDS", 2.0)  # a busy machine delays a beat by tenths
    cluster = connect(f"127.0.0.1:{port}")
    threads = [
        threading.Thread(target=cluster.call, args=({"call": "x", "seconds": seconds}, {}))
        for seconds in (0.1, 2.5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (service.asked, service.most_at_work) == (2, 1)


# -- keys --------------------------------------------------------------------------------------


def test_keys_are_for_their_user_alone(keys: Path) -> None:
    os.umask(umask := os.umask(0))
    os.umask(0)
    try:
        make_keys(keys)
    finally:
        os.umask(umask)
    assert {path.name for path in keys.iterdir()} == {AUTHORITY, WORKER, COMMAND_KEY}
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys.iterdir()} == {0o600}
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert b"PRIVATE KEY" not in (keys / AUTHORITY).read_bytes()
    with pytest.raises(FileExistsError, match="is there already"):
        make_keys(keys)
    assert [path.name for path in keys.parent.iterdir()] == [keys.name]


def test_keys_that_others_may_know_are_refused(keys: Path) -> None:
    with pytest.raises(ClusterError, match="there are no keys in"):
        command_context(keys)
    make_keys(keys)
    (keys / COMMAND_KEY).chmod(0o640)
    with pytest.raises(ClusterError, match=r"command\.pem is not fit for a key"):
        command_context(keys)
    (keys / COMMAND_KEY).unlink()
    (keys / COMMAND_KEY).write_text("no key")
    (keys / COMMAND_KEY).chmod(0o600)
    with pytest.raises(ClusterError, match="holds no keys of a cluster"):
        command_context(keys)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "example.org"])
def test_beyond_loopback_the_user_names_the_keys(keys: Path, host: str) -> None:
    with pytest.raises(ClusterError, match=rf"--host {host} lets other machines in.*{VARIABLE}"):
        serve(Echo(), host, 0, print)
    assert not keys.exists()


def test_keys_that_do_not_fit_are_said_at_once(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(_other_keys(tmp_path)))
    monkeypatch.setattr(connection, "REACH_SECONDS", 3600.0)  # for them it does not wait
    with pytest.raises(
        ClusterError, match=r"no worker answers at .*the keys of .*other do not fit"
    ):
        connect(f"127.0.0.1:{port}")


@pytest.mark.slow(seconds=2)
def test_the_command_makes_keys_that_open_a_worker_on_every_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(tmp_path, "one") as own:
        for again in False, True:
            made = own.run(f"keys-{again}", *COMMAND, "cluster", "keys", "shared")
            assert made.wait(60) == (2 if again else 0)
        assert "name a new folder" in own.said("keys-True")
        monkeypatch.setenv(VARIABLE, str(tmp_path / "shared"))
        process = own.run(
            "one", *COMMAND, "cluster", "serve", "--host", "0.0.0.0", "--port",
            str(own.ports["one"]), more={VARIABLE: "shared"},
        )  # fmt: skip
        own.wait_for("one", "Ctrl-C ends it")
        assert {address.ip for address in listening(process.pid)} == {"0.0.0.0"}
        assert connect(own.address).slots() == 1


# -- other users -------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_another_user_of_the_machine_gets_nothing(port: int, keys: Path, service: Echo) -> None:
    for folder in (keys.parent, *keys.parent.parents):  # as homes that others may look into
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o005)

    def look() -> list[str]:
        found = []
        for name in (AUTHORITY, WORKER, COMMAND_KEY):
            with suppress(PermissionError):
                found.append((keys / name).read_text())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with suppress(OSError, EOFError):
            found.append(str(dial("127.0.0.1", port, context, 10).ask({"call": "x"}, {})))
        return found

    assert as_nobody(look) == []
    assert service.asked == 0
