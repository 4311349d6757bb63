"""Measures one network with several inference engines in turns, each engine in its own process.

In each round, every engine runs for some tenths of a second. The order rotates from round to round.
A round counts only if it was quiet: the engines' threads hardly waited for a core, and the
hypervisor gave no CPU time to other virtual machines. Other work on the machine could slow some
engines more than others. Leaving out the disturbed rounds keeps it from distorting the comparison.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Header, Limits, RpcFailed, RpcProcess
from tilewright.core.files import as_int, as_number
from tilewright.core.lazy_module import lazy_module
from tilewright.evaluation.engines.engine import EngineError
from tilewright.search.events import Event, Listener, ignore

MOST_WAITING = 0.04
"""Maximum fraction of a quiet round that an engine's threads wait for a core, per thread."""
PAUSE_SECONDS = 0.02
"""Pause between engines, in which busy-waiting threads of the previous engine stop."""
OPEN_SECONDS, TURN_SECONDS = 900.0, 300.0
FEWEST = 3
"""Minimum number of quiet rounds for a reliable result."""

stats = lazy_module("scipy.stats")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rounds:
    """Length of a benchmark in which engines take turns.

    A round is quiet if the engines hardly had to wait for a processor core.

    Attributes:
        quiet: number of quiet rounds after which the benchmark ends.
        most: maximum number of rounds, quiet or not.
        seconds: duration of a round per engine.
    """

    quiet: int
    most: int
    seconds: float


@dataclass(frozen=True)
class RoundTimed(Event):
    """Event that is emitted after each round of a benchmark.

    Attributes:
        done: number of rounds so far.
        quiet: number of quiet rounds so far.
        wanted: number of quiet rounds after which the benchmark ends.
    """

    done: int
    quiet: int
    wanted: int


@dataclass(frozen=True)
class EngineTimes:
    """Measurements of one engine.

    Attributes:
        engine: name of the engine.
        wall: median wall-clock seconds per inference in each round, float array of shape (rounds,).
        cpu: mean processor seconds per inference in each round, float array of shape (rounds,).
        difference: largest absolute difference between an output of this engine and the same output
            of the first engine, divided by the largest absolute value of the latter.
        peak_bytes: peak memory of the process up to the end of the first inference; 0 if unknown.
    """

    engine: str
    wall: Floats
    cpu: Floats
    difference: float
    peak_bytes: int = 0


@dataclass(frozen=True)
class Timed:
    """Measurements of several engines that ran the same network in the same rounds.

    Attributes:
        engines: measurements of each engine, by name.
        quiet: bool array of shape (rounds,), True for rounds in which the engines hardly had to
            wait for a processor core.
        load: load average of the machine at the start.
    """

    engines: Mapping[str, EngineTimes]
    quiet: NDArray[np.bool_]
    load: float

    @property
    def counted_rounds(self) -> NDArray[np.bool_]:
        """Mask of the rounds that are used: the quiet ones, or all rounds if too few are quiet."""
        return self.quiet if self.trustworthy else np.ones_like(self.quiet)

    @property
    def trustworthy(self) -> bool:
        """True if at least `FEWEST` rounds were quiet."""
        return int(self.quiet.sum()) >= FEWEST

    def milliseconds(self, engine: str) -> float:
        """Return the median duration of one inference with an engine, in ms."""
        return 1e3 * float(np.median(self.engines[engine].wall[self.counted_rounds]))

    def ratio(self, engine: str, rival: str, *, cpu: bool = False) -> Ratio:
        """Return the duration of an inference with one engine, divided by that with another engine.

        Args:
            engine: engine in the numerator.
            rival: engine in the denominator.
            cpu: compare processor time instead of wall-clock time.

        Returns:
            The median ratio over the counted rounds, with a 95 % interval.
        """
        mine, theirs = self.engines[engine], self.engines[rival]
        above, below = (mine.cpu, theirs.cpu) if cpu else (mine.wall, theirs.wall)
        return ratio_of(above[self.counted_rounds] / below[self.counted_rounds])


@dataclass(frozen=True)
class Ratio:
    """Duration of one engine relative to another engine: median over rounds with a 95 % interval.

    Attributes:
        median: the median.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    median: float
    low: float
    high: float


def ratio_of(ratios: Floats) -> Ratio:
    """Return the median of ratios over rounds, with a 95 % bootstrap interval.

    Args:
        ratios: one ratio per round, float array of shape (rounds,).

    Returns:
        The median and the interval. With a single round, the interval is that ratio.
    """
    middle = float(np.median(ratios))
    if len(ratios) < 2:
        return Ratio(middle, middle, middle)
    interval = stats.bootstrap(
        (ratios,), np.median, method="percentile", n_resamples=2000, rng=np.random.default_rng(0)
    ).confidence_interval
    return Ratio(middle, float(interval.low), float(interval.high))


def time_engines(
    sources: Mapping[str, Path],
    inputs: Arrays,
    threads: int,
    rounds: Rounds,
    emit: Listener = ignore,
) -> Timed:
    """Measure how long engines take for an inference, each engine in its own process.

    The engines take turns, so that slow changes of the machine's speed affect all of them. The
    benchmark ends after `rounds.quiet` quiet rounds, or after `rounds.most` rounds in total.

    Args:
        sources: artifact or ONNX file, by name of the engine. The outputs of the first engine are
            the reference for the others.
        inputs: arrays by input name, in the shapes of the network.
        threads: number of threads of each engine.
        rounds: number of rounds and their duration.
        emit: function that is called with a `RoundTimed` event after each round.

    Returns:
        The measurements of all engines.

    Raises:
        EngineError: an engine cannot run the network.
    """
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        processes = {name: _process(stack) for name in sources}
        opened = {
            name: _open_engine(name, processes[name], source, threads, inputs)
            for name, source in sources.items()
        }
        rows: list[tuple[dict[str, float], dict[str, float], bool]] = []
        while sum(quiet for *_, quiet in rows) < rounds.quiet and len(rows) < rounds.most:
            rows.append(_round(processes, len(rows), rounds.seconds, threads))
            emit(RoundTimed(len(rows), sum(quiet for *_, quiet in rows), rounds.quiet))
    first = next(iter(sources))
    return Timed(
        {
            name: EngineTimes(
                name,
                np.array([wall[name] for wall, _, _ in rows]),
                np.array([cpu[name] for _, cpu, _ in rows]),
                _difference(opened[name][0], opened[first][0]),
                opened[name][1],
            )
            for name in sources
        },
        np.array([quiet for *_, quiet in rows]),
        load,
    )


def _process(stack: ExitStack) -> RpcProcess:
    process = RpcProcess("tilewright.evaluation.engines.process", [], Limits(OPEN_SECONDS))
    stack.callback(process.stop)
    return process


def _open_engine(
    name: str, process: RpcProcess, source: Path, threads: int, inputs: Arrays
) -> tuple[list[NDArray[Any]], int]:
    """Load a network into an engine that runs in a child process, and run one inference.

    Args:
        name: name of the engine.
        process: the child process.
        source: artifact or ONNX file.
        threads: number of threads.
        inputs: arrays by input name, in the shapes of the network.

    Returns:
        The outputs of the network, and the peak memory of the process in bytes.
    """
    header: Header = {
        "call": "open", "engine": name, "source": str(source), "threads": threads,
    }  # fmt: skip
    reply, arrays = _ask_engine(name, process, header, inputs)
    return [arrays[key] for key in sorted(arrays, key=int)], as_int(reply["peak_bytes"])


def _ask_engine(
    name: str, process: RpcProcess, header: Header, arrays: Arrays | None = None
) -> tuple[Header, dict[str, NDArray[Any]]]:
    try:
        reply, result = process.call(
            header, arrays, seconds=OPEN_SECONDS if header["call"] == "open" else TURN_SECONDS
        )
    except RpcFailed as error:
        raise EngineError(f"{name} cannot run the network: {error}; leave {name} out") from None
    if "error" in reply:
        said = str(reply.get("message", "")).strip().splitlines()
        raise EngineError(
            f"{name} cannot run the network: {reply['error']}: {said[0] if said else ''}; "
            f"leave {name} out"
        )
    return reply, result


def _round(
    processes: Mapping[str, RpcProcess], number: int, seconds: float, threads: int
) -> tuple[dict[str, float], dict[str, float], bool]:
    """Let every engine run inferences for some time, one after the other.

    Args:
        processes: child process of each engine, by name of the engine.
        number: index of the round, by which the order of the engines rotates.
        seconds: duration of the measurement per engine.
        threads: number of threads of each engine.

    Returns:
        Median wall-clock seconds per inference and mean processor seconds per inference, by name of
        the engine, and True if the round was quiet: no thread had to wait long for a core, and the
        hypervisor took no time.
    """
    names = list(processes)
    wall: dict[str, float] = {}
    cpu: dict[str, float] = {}
    stolen, quiet = _stolen_ticks(), True
    for name in _rotate_names(names, number):
        reply, arrays = _ask_engine(name, processes[name], {"call": "time", "seconds": seconds})
        wall[name], cpu[name] = float(np.median(arrays["seconds"])), as_number(reply["cpu"])
        quiet = quiet and as_number(reply["waited"]) <= MOST_WAITING * threads
        time.sleep(PAUSE_SECONDS)
    return wall, cpu, quiet and _stolen_ticks() == stolen


def _rotate_names(names: Sequence[str], number: int) -> Iterator[str]:
    start = number % len(names)
    yield from names[start:]
    yield from names[:start]


def _stolen_ticks() -> int:
    """Return the clock ticks that the hypervisor gave to other virtual machines; 0 if unknown."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(fields[8])
    except (OSError, IndexError, ValueError):
        return 0


def _difference(outputs: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]]) -> float:
    """Return the largest relative difference between the outputs of two engines.

    For each output, the largest absolute difference is divided by the largest absolute value of the
    reference. The result is infinite if the shapes differ.

    Args:
        outputs: outputs of an engine, in the order of the network's outputs.
        wanted: outputs of the first engine, the reference, in the same order.
    """
    if [array.shape for array in outputs] != [array.shape for array in wanted]:
        return float("inf")
    worst = 0.0
    for mine, theirs in zip(outputs, wanted, strict=True):
        apart = np.abs(np.subtract(mine, theirs, dtype=np.float64)).max(initial=0)
        largest = np.abs(theirs.astype(np.float64)).max(initial=0)
        worst = max(worst, float(apart / largest) if largest else float(apart))
    return worst
