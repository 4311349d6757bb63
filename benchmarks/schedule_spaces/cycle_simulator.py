"""Measures the speed of VTA's cycle simulator.

    python -m benchmarks.schedule_spaces.cycle_simulator [--spec NAME] [--threads N]

By default, real programs (of the template space of a convolution) are simulated. The command prints
nanoseconds per instruction, and simulated cycles and programs per second. It also prints how the
time depends on the length of a program, the size of a batch and the number of threads. Lowering is
not included. `rate` accepts any programs.

`--spaces` enumerates whole spaces instead, on all cores, including lowering and hidden features:
the template spaces of ResNet-18 with the stock compiler's restrictions, and ML²Tuner's space of one
layer.

`--extended` evaluates parts of the extended spaces of ResNet-18, including lowering and hidden
features. The configs are either blocks of neighbours, as in a full enumeration, or random configs.
They are evaluated alternately row by row, and with configs of the same schedule evaluated only
once. Both must give the same digest.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import resource
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.layers import RESNET18
from tilewright.targets import make_target
from tilewright.targets.base import Space
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.measure import time_rows
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.timing import simulate_batch
from tilewright.targets.workload import Workload, parse_workload

SLOT_KNOBS = 5
"""Number of knobs of the extended space before the slot knobs: tile sizes and loop order."""
WORKLOAD = "conv2d:n=1,c=64,h=56,w=56,o=128,k=1,s=2,p=0"
Programs = list[NDArray[np.uint64]]


@dataclass(frozen=True)
class Rate:
    """Result of a measurement.

    `cpu` is the processor time of all threads and `wall` the elapsed time, both in seconds.
    """

    programs: int
    instructions: int
    cycles: int
    wall: float
    cpu: float

    def __str__(self) -> str:
        return (
            f"{self.programs:6,} programs {self.instructions:12,} instructions "
            f"{self.cpu / self.instructions * 1e9:7.1f} ns/instruction (CPU) "
            f"{self.cycles / self.wall / 1e9:6.2f} G cycles/s {self.programs / self.wall:9,.0f} "
            "programs/s"
        )


def rate(programs: Programs, spec: VtaSpec, threads: int = 1, repeats: int = 3) -> Rate:
    """Return the fastest of several simulations of programs, each of shape (instructions, 2).

    Compiled code of the simulator is loaded before the first simulation.
    """
    insns = np.concatenate(programs)
    offsets = np.cumsum([0, *map(len, programs)])
    simulate_batch(insns[: offsets[1]], offsets[:2], spec)
    runs = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        batch = simulate_batch(insns, offsets, spec, threads=threads)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        runs.append((wall, cpu, int(batch.cycles.sum())))
    wall, cpu, cycles = min(runs)
    return Rate(len(programs), len(insns), cycles, wall, cpu)


def template_programs(workload: str, spec: VtaSpec, most: int) -> Programs:
    """Return programs of a template space, each of shape (instructions, 2).

    They belong to at most `most` configs, evenly spaced over the space.
    """
    lowering = Lowering.for_workload(parse_workload(workload), spec, "template")
    space = lowering.space
    flat = np.unique(np.linspace(0, space.size - 1, most).astype(np.int64))
    programs = []
    for values in space.values(space.unravel(flat)):
        code, insns, _, _ = lowering.program(values)
        if code == 0:
            programs.append(insns.copy())
    return programs


def enumerate_spaces(spec: str) -> None:
    """Print how long the enumeration of whole spaces takes, from knobs to cycles."""
    layers = [workload for workload, _ in RESNET18.values()]
    stock, unchecked = make_target(spec, "stock"), make_target("evta-zcu102", "unchecked")
    assert isinstance(stock, VtaTarget)
    assert isinstance(unchecked, VtaTarget)
    stock.enumerate(layers[0])  # compiled code is loaded
    _report("ten template spaces, stock restrictions", stock, layers)
    _report("56×56 64→64 3×3, unchecked", unchecked, layers[:1])


def evaluate_extended(spec: VtaSpec, rounds: int) -> None:
    """Print valid configs per second of processor time, row by row and with each schedule once."""
    for what, choose in (
        ("blocks of neighbours", neighbours),
        ("scattered configs", random_configs),
    ):
        times, valid, configs = np.zeros(2), 0, 0
        digests = [hashlib.sha256(), hashlib.sha256()]
        for workload, _ in RESNET18.values():
            lowering = Lowering.for_workload(workload, spec, "extended")
            values = choose(lowering.space, np.random.default_rng(0))
            time_rows(lowering, values[:1])  # compiled code is loaded
            best = [np.inf, np.inf]
            for turn in range(rounds):
                for way in (0, 1):
                    begin = time.process_time()
                    rows = time_rows(lowering, values, every_row=way == 0)
                    best[way] = min(best[way], time.process_time() - begin)
                    if turn == 0:
                        for part in rows:
                            digests[way].update(np.ascontiguousarray(part).tobytes())
            times += best
            configs, valid = configs + len(values), valid + int((rows[2] >= 0).sum())
        before, after = valid / times
        print(
            f"{what} on {spec.name}: {configs:,} configs, {valid:,} valid: {before:,.0f} valid/s "
            f"(CPU) row by row, {after:,.0f} with each schedule once, {after / before:.2f} times; "
            f"digests {' '.join(digest.hexdigest()[:12] for digest in digests)}"
        )


def neighbours(space: Space, rng: np.random.Generator, tilings: int = 8) -> NDArray[np.int64]:
    """Return knob values of random tilings, each with all values of the later knobs.

    The later knobs are slots, first steps and last pieces.

    Returns:
        Int array of shape (n, knobs).
    """
    outer = math.prod(len(knob.values) for knob in space.knobs[:SLOT_KNOBS])  # these turn fastest
    chosen = rng.choice(outer, min(tilings, outer), replace=False)
    flat = chosen[:, None] + outer * np.arange(space.size // outer)
    return space.values(space.unravel(flat.ravel()))


def random_configs(space: Space, rng: np.random.Generator, most: int = 1000) -> NDArray[np.int64]:
    """Return knob values, shape (n, knobs), of random configs without repetitions."""
    flat = rng.choice(space.size, min(most, space.size), replace=False)
    return space.values(space.unravel(flat))


def _report(what: str, target: VtaTarget, layers: list[Workload]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    configs = valid = instructions = cycles = 0
    for workload in layers:
        lowered, measured = target.enumerate(workload)
        right = measured.valid
        configs, valid = configs + len(lowered), valid + int(right.sum())
        place = lowered.hidden.names.index("instructions")
        instructions += int(lowered.hidden.matrix[right, place].sum())
        cycles += int(measured.cycles[right].sum())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{what} on {target.name}: {configs:,} configs, {valid:,} valid in {wall:.2f} s "
        f"({cpu:.2f} s CPU): {configs / wall:,.0f} configs/s, {valid / wall:,.0f} valid/s, "
        f"{instructions / wall / 1e6:.1f} M instructions/s, {cycles / wall / 1e9:.2f} G cycles/s; "
        f"largest {memory:,.0f} MiB"
    )


def main() -> None:
    """Print programs and cycles per second, also by length of program and size of the batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", default="vta-pynq")
    parser.add_argument("--workload", default=WORKLOAD)
    parser.add_argument("--configs", type=int, default=400)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--spaces", action="store_true")
    parser.add_argument("--extended", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.spaces:
        enumerate_spaces(options.spec)
        return
    spec = VtaSpec.load(options.spec)
    if options.extended:
        evaluate_extended(spec, options.rounds)
        return
    programs = sorted(template_programs(options.workload, spec, options.configs), key=len)

    print(f"{options.workload} on {spec.name}")
    for threads in sorted({1, options.threads}):
        print(f"  {threads} thread(s)       {rate(programs, spec, threads)}")
    print("by length of the programs, 1 thread")
    for share in np.array_split(np.arange(len(programs)), 5):
        part = [programs[k] for k in share]
        print(f"  {len(part[0]):6,}-{len(part[-1]):7,}  {rate(part, spec)}")
    print(f"by size of the batch, {options.threads} thread(s)")
    mixed = [programs[k] for k in np.random.default_rng(0).permutation(len(programs))]
    for size in (1, 10, 100, len(mixed)):
        if size <= len(mixed):
            print(f"  {size:6,}          {rate(mixed[:size], spec, options.threads)}")


if __name__ == "__main__":
    main()
