"""Measures the rows per second of `tilewright dataset build` on Dask clusters.

    .venv/bin/python -m benchmarks.cluster --json FILE            # some minutes
    .venv/bin/python -m benchmarks.cluster --json FILE --quick    # a minute

These clusters are compared with a build in a single process:

* `local:N` with 1, 2 and 4 processes on this machine;
* two hosts in network namespaces (`ip netns`, needs root), each with a worker that has one thread.
  The scheduler and the command run on the first host. Traffic between the hosts crosses a virtual
  network cable with TLS.

In each round, every cluster builds one dataset, so that changes of the machine's load affect all
clusters alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tilewright.core.files import write_atomically
from tilewright.targets.cluster.keys import dask_settings, make_keys

ROOT = Path(__file__).parents[1]
COUNTS = (1, 2, 4)
NETWORK = "10.77.31"
"""Prefix of the IP addresses of the two hosts. The network cannot be reached from outside of the
namespaces."""
START_SECONDS = 120.0
PYTHON = (sys.executable, "-P", "-m")


@dataclass(frozen=True)
class Throughput:
    """Duration of building a dataset, in seconds: of the whole command, and of measuring rows."""

    cluster: str
    rows: int
    seconds: float
    measuring: float

    @property
    def rows_per_second(self) -> float:
        """Rows per second of the time in which rows were measured."""
        return self.rows / self.measuring


class Hosts:
    """Context manager with two network namespaces that are connected by a virtual cable.

    It needs root.
    """

    def __init__(self, name: str = "") -> None:
        self.names = tuple(f"tw{name or os.getpid()}-{number}" for number in (1, 2))
        self.addresses = tuple(f"{NETWORK}.{number}" for number in (1, 2))
        self._cables = tuple(f"tw{number}" for number in (1, 2))

    def __enter__(self) -> Hosts:
        for name in self.names:
            _ip("netns", "add", name)
        first, second = self._cables
        _ip("-n", self.names[0], "link", "add", first, "type", "veth", "peer", "name", second,
            "netns", self.names[1])  # fmt: skip
        for name, cable, address in zip(self.names, self._cables, self.addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", cable)
            _ip("-n", name, "link", "set", cable, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)

    def command_on(self, host: int, *command: str) -> list[str]:
        """Return the command line that runs `command` on a host, 0 or 1."""
        return ["ip", "netns", "exec", self.names[host], *command]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class DaskOnHosts:
    """Context manager with a Dask scheduler on the first host and a worker on each host.

    Each worker has one thread. `environment` holds the environment variables of a command that uses
    the cluster.
    """

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.address = f"tls://{hosts.addresses[0]}:8786"
        self.environment: dict[str, str] = {}
        self.workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> DaskOnHosts:
        make_keys(self.folder / "keys")
        self.environment = dict(os.environ) | variables(self.folder / "keys")
        self.environment["PYTHONPATH"] = str(ROOT)
        self._start(0, "Scheduler at:", "distributed.cli.dask_scheduler", "--port", "8786")
        self.workers = [
            self._start(
                host, "Registered to:", "distributed.cli.dask_worker", self.address,
                "--nworkers", "1", "--nthreads", "1", "--no-nanny", "--local-directory",
                str(self.folder / "scratch"),
            )
            for host in (0, 1)
        ]  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, host: int, ready: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process of the cluster on a host, and wait until it is ready."""
        address = self.hosts.addresses[host]
        log = self.folder / f"node-{host}-{len(list(self.folder.glob('node-*')))}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.hosts.command_on(
                    host, *PYTHON, *command, "--protocol", "tls", "--host", address,
                    "--dashboard-address", "127.0.0.1:0",
                ),
                env=self.environment, cwd=self.folder, stdout=file, stderr=file,
            )  # fmt: skip
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        end = time.monotonic() + START_SECONDS
        while ready not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text())
            time.sleep(0.1)
        return process


def variables(keys: Path) -> dict[str, str]:
    """Return the settings that `tilewright cluster keys` prints, by name."""
    lines = (line for line in dask_settings(keys).splitlines() if line.startswith("export "))
    pairs = (line.removeprefix("export ").partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def build(rows: int, cluster: str) -> None:
    """Build a dataset in this process after building a small one, and print the times as JSON."""
    from tilewright.evaluation.datasets.build import PlannedFile
    from tilewright.evaluation.datasets.options import DatasetOptions
    from tilewright.flows.dataset import build_dataset
    from tilewright.search import LocalRunner
    from tilewright.search.events import Event

    began = list[float]()

    def hear(event: Event) -> None:
        if isinstance(event, PlannedFile):
            began.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as name:
        # Each worker makes its target and loads its kernels once.
        small = DatasetOptions(rows=4096, cpu_rows=0, seed=1, specs=12, workloads=12)
        build_dataset(LocalRunner(), Path(name) / "small", small, cluster)
        begin = time.perf_counter()
        options = DatasetOptions(rows=rows, cpu_rows=0, seed=0, specs=12, workloads=48)
        build_dataset(LocalRunner(hear), Path(name) / "large", options, cluster)
        end = time.perf_counter()
    print(json.dumps([end - begin, end - began[0]]))


def measure(rows: int, cluster: str, command: Sequence[str], env: Mapping[str, str]) -> Throughput:
    """Build a dataset with a separate command, and return the times that it prints."""
    done = subprocess.run(
        [*command, *PYTHON, "benchmarks.cluster", "--rows", str(rows), "--build", cluster],
        env=dict(env), cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    seconds, measuring = json.loads(done.stdout.splitlines()[-1])
    return Throughput(cluster or "no cluster", rows, seconds, measuring)


@contextmanager
def two_hosts() -> Iterator[DaskOnHosts | None]:
    """Start the cluster on two hosts. Yield None if network namespaces cannot be created."""
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(Hosts())
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield stack.enter_context(DaskOnHosts(hosts, folder))


def run_rounds(rows: int, rounds: int, console: Console) -> list[Throughput]:
    """Build datasets without a cluster and on each cluster, in turns."""
    here = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    result = list[Throughput]()
    with two_hosts() as dask:
        for number in range(rounds):
            for cluster in ("", *(f"local:{count}" for count in COUNTS)):
                result.append(measure(rows, cluster, (), here))
            if dask is not None:
                on_head = dask.hosts.command_on(0)
                done = measure(rows, dask.address, on_head, dask.environment)
                result.append(Throughput("two hosts", done.rows, done.seconds, done.measuring))
            console.print(f"round {number + 1} of {rounds}")
    return result


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the figures.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of the dataset.")] = 400_000,
    rounds: Annotated[int, typer.Option(help="Builds per cluster.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run once with a tenth of the rows.")
    ] = False,
    build_on: Annotated[str | None, typer.Option("--build", hidden=True)] = None,
) -> None:
    """Measure the rows per second of `dataset build` on each cluster."""
    if build_on is not None:
        build(rows, build_on)
        return
    console = Console()
    rows, rounds = (rows // 10, 1) if quick else (rows, rounds)
    result = run_rounds(rows, rounds, console)
    names = list(dict.fromkeys(item.cluster for item in result))
    table = Table("cluster", "rows/s", "relative to one process", "s of the command")
    alone = median(e.rows_per_second for e in result if e.cluster == names[0])
    for name in names:
        mine = [item for item in result if item.cluster == name]
        speed = median(item.rows_per_second for item in mine)
        table.add_row(
            name, f"{speed:,.0f}", f"{speed / alone:.2f}×",
            f"{median(item.seconds for item in mine):.1f}",
        )  # fmt: skip
    console.print(table)
    if json_file is not None:
        document = {"processors": os.cpu_count(), "builds": [asdict(item) for item in result]}
        write_atomically(json_file, json.dumps(document, indent=1).encode())


if __name__ == "__main__":
    typer.run(main)
