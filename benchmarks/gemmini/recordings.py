"""Compares Gemmini's simulators with recordings of Gemmini's RTL.

    python -m benchmarks.gemmini.recordings DIR [--part NAME]

DIR holds an `index.json` and the NPZ files that it names. They contain command streams, the memory
before and after each stream, and the cycles in which each command was accepted, allocated, issued
and completed, for several memory settings. `tests/data/gemmini` is such a folder; its README.md
describes the arrays.

For each kind of stream, the command prints how many memory images are equal. For each memory
setting, it prints how many total cycle counts are equal, within 1 %, further off, or rejected by
the simulator. All events of a stream count as equal only if the four cycles of all its commands are
equal. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import markdown_table
from tilewright.core.errors import TilewrightError
from tilewright.targets.gemmini.functional import execute_stream
from tilewright.targets.gemmini.isa import CommandStream
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.timing import time_stream
from tilewright.targets.gemmini.timing.state import EVENT_NAMES

NEAR = 0.01
"""Relative error of a total cycle count up to which it counts as near."""


@dataclass(frozen=True)
class RecordedStream:
    """A command stream with its recording: memory, and cycles and events per memory setting."""

    meta: dict[str, Any]
    commands: CommandStream
    base: int
    before: NDArray[np.uint8]
    after: NDArray[np.uint8]
    cycles: NDArray[np.int64]  # (settings,)
    events: dict[str, NDArray[np.int64]]  # (settings, commands) each


class RecordedPart:
    """The streams of one NPZ file of a folder of recordings."""

    def __init__(self, folder: Path, index: dict[str, Any], name: str) -> None:
        info = index["invalid"] if name == "invalid" else index["parts"][name]
        with np.load(folder / info["file"], allow_pickle=False) as archive:
            self.arrays = {key: archive[key] for key in archive.files}
        self.streams: list[dict[str, Any]] = info["streams"]
        self.machine: dict[str, Any] = index["machine"]
        self.settings: list[dict[str, Any]] = index["settings"]

    def specs(self) -> list[GemminiSpec]:
        """Return one specification of the machine per memory setting."""
        return [GemminiSpec.from_mapping({**self.machine, **setting}) for setting in self.settings]

    def stream(self, n: int) -> RecordedStream:
        """Return the stream with index `n`."""
        z = self.arrays
        a, b = int(z["off"][n]), int(z["off"][n + 1])
        before = np.zeros(self.machine["memory_size"], np.uint8)
        self._put("seg", n, before)
        after = before.copy()
        self._put("wseg", n, after)
        return RecordedStream(
            self.streams[n],
            CommandStream(z["funct"][a:b], z["rs1"][a:b], z["rs2"][a:b]),
            self.machine["memory_base"],
            before,
            after,
            z["cycles"][n] if "cycles" in z else np.zeros(0, np.int64),
            {name: z[name][:, a:b] for name in EVENT_NAMES if name in z},
        )

    def __iter__(self) -> Iterator[RecordedStream]:
        return (self.stream(n) for n in range(len(self.streams)))

    def _put(self, runs: str, n: int, image: NDArray[np.uint8]) -> None:
        z = self.arrays
        for k in range(z[f"{runs}_off"][n], z[f"{runs}_off"][n + 1]):
            at = int(z[f"{runs}_addr"][k]) - self.machine["memory_base"]
            position, length = int(z[f"{runs}_pos"][k]), int(z[f"{runs}_len"][k])
            image[at : at + length] = z["pool"][position : position + length]


@dataclass
class Exactness:
    """Number of streams of one kind, and how many of them agree with the recording."""

    streams: int = 0
    memory: int = 0
    equal: list[int] = field(default_factory=list)  # totals, by setting
    near: list[int] = field(default_factory=list)
    worse: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)

    def count(self, settings: int) -> None:
        """Extend the lists of counts to the number of memory settings."""
        for numbers in (self.equal, self.near, self.worse, self.refused, self.events):
            if not numbers:
                numbers.extend([0] * settings)

    @property
    def all_agree(self) -> bool:
        """True if nothing differs."""
        whole = [self.streams] * len(self.equal)
        return self.memory == self.streams and self.equal == whole and self.events == whole


def read_index(folder: Path) -> dict[str, Any]:
    """Read the index of a folder of recordings."""
    index: dict[str, Any] = json.loads((folder / "index.json").read_text())
    return index


def compare(
    part: RecordedPart, spec: GemminiSpec | None = None, every: int = 1
) -> dict[str, Exactness]:
    """Count the streams of each kind that agree with the simulators.

    Args:
        part: the recordings.
        spec: machine on which memory images are computed; by default the recorded one.
        every: only every n-th stream is simulated.

    Returns:
        The counts by kind of stream.
    """
    specs = part.specs()
    result: dict[str, Exactness] = {}
    for recorded in islice(part, 0, None, every):
        kind = result.setdefault(recorded.meta["family"], Exactness())
        kind.count(len(specs))
        kind.streams += 1
        kind.memory += _same_memory(recorded, spec or specs[0])
        for setting, item in enumerate(specs):
            _compare_cycles(recorded, item, setting, kind)
    return result


def _same_memory(recorded: RecordedStream, spec: GemminiSpec) -> bool:
    try:
        after = execute_stream(recorded.commands, recorded.before, recorded.base, spec)
    except TilewrightError as error:
        print(f"{recorded.meta['id']}: {error}", file=sys.stderr)
        return False
    return np.array_equal(after, recorded.after)


def _compare_cycles(
    recorded: RecordedStream, spec: GemminiSpec, setting: int, kind: Exactness
) -> None:
    wanted = int(recorded.cycles[setting])
    try:
        times = time_stream(recorded.commands, spec)
    except TilewrightError as error:
        print(f"{recorded.meta['id']}: {error}", file=sys.stderr)
        kind.refused[setting] += 1
        return
    if times.total == wanted:
        kind.equal[setting] += 1
    elif abs(times.total - wanted) <= NEAR * wanted:
        kind.near[setting] += 1
    else:
        kind.worse[setting] += 1
    names = ("accept",) if recorded.commands.has_loops else EVENT_NAMES
    same = all(np.array_equal(times.events[name], recorded.events[name][setting]) for name in names)
    kind.events[setting] += same and times.total == wanted


def rows(name: str, result: dict[str, Exactness]) -> Iterator[list[str]]:
    """Yield the lines of the table: one per kind of stream, and one with their sum."""
    for kind, item in result.items():
        yield [
            name, kind, str(item.streams), f"{item.memory}",
            *(
                f"{item.equal[n]} / {item.near[n]} / {item.worse[n]} / {item.refused[n]}"
                for n in range(len(item.equal))
            ),
            " / ".join(map(str, item.events)),
        ]  # fmt: skip


def main() -> int:
    """Compare the simulators with recordings; return 1 if anything differs."""
    parser = argparse.ArgumentParser(description="compare Gemmini's simulators with recordings")
    parser.add_argument("folder", type=Path, help="recordings: index.json and its NPZ files")
    parser.add_argument("--part", help="only this part, such as kernels")
    options = parser.parse_args()
    index = read_index(options.folder)
    settings = index["settings"]
    titles = [
        f"latency {setting['latency']}, {setting['cycles_per_beat']} per beat"
        for setting in settings
    ]
    print("Totals by setting: equal / within 1 % / worse / refused.\n")
    header = ["part", "kind", "streams", "memory equal", *titles, "all events equal"]
    lines: list[list[str]] = []
    agree = True
    spent, simulated = 0.0, 0
    for name in index["parts"]:
        if options.part and name != options.part:
            continue
        part = RecordedPart(options.folder, index, name)
        begun = time.perf_counter()
        result = compare(part)
        spent += time.perf_counter() - begun
        simulated += int(part.arrays["cycles"].sum())
        lines += rows(name, result)
        agree = agree and all(item.all_agree for item in result.values())
    print(markdown_table(header, "llr", lines))
    print(f"\n{simulated:,} cycles simulated and memory executed in {spent:.1f} s")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
