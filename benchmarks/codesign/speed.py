"""Measures how many machine x layer x schedule points a second are bounded, estimated, simulated.

    python -m benchmarks.codesign.speed [--machines 8] [--programs 64] [--network resnet18]

Machines are drawn evenly from all within the area. Of each layer the whole space is bounded and
estimated; then schedules that may fit, drawn evenly, are lowered and simulated. Seconds are CPU
seconds of all threads, so figures are per core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.codesign.exact_solver import TruthOptions
from tilewright.targets.capabilities import Bounds, Estimates, MeasuresInOnePass, capability

WAYS = ("bounds of schedules", "estimates", "compiled and simulated")


@dataclass
class Rate:
    """Points, and CPU seconds they took."""

    points: int = 0
    seconds: float = 0.0

    def time(self, points: int, work: Callable[[], object]) -> None:
        """Count points that `work` does."""
        begin = time.process_time()
        work()
        self.seconds += time.process_time() - begin
        self.points += points


def main() -> None:
    """Print points a second, by way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--target", default="vta-pynq")
    parser.add_argument("--area", type=float, default=1.5)
    parser.add_argument("--machines", type=int, default=8)
    parser.add_argument("--programs", type=int, default=64, help="simulated of each layer")
    given = parser.parse_args()
    bounds = (("log_batch", 0, 0), ("log_uop_buff_size", 13, 13), ("bus_bits", 64, 128))
    problem = TruthOptions((given.network,), given.target, given.area, bounds).problem()
    rng = np.random.default_rng(0)
    rates, pairs = {way: Rate() for way in WAYS}, 0
    for row in rng.choice(len(problem.hardware.points), given.machines, replace=False).tolist():
        design = problem.design(row)
        known = capability(design.target, Bounds)
        estimates = capability(design.target, Estimates)
        once = capability(design.target, MeasuresInOnePass)
        assert known is not None
        assert estimates is not None
        assert once is not None
        for layer in design.layers:
            workload, space = layer.workload, design.target.space(layer.workload)
            configs = space.unravel(np.arange(space.size))
            least = known.schedule_bounds(workload, configs)
            assert least is not None
            fits = np.flatnonzero(np.isfinite(least))
            if not len(fits):
                continue
            some = configs[rng.choice(fits, min(given.programs, len(fits)), replace=False)]
            once.lower_and_measure(workload, some[:1])  # kernels are loaded
            rates[WAYS[0]].time(space.size, partial(known.schedule_bounds, workload, configs))
            rates[WAYS[1]].time(space.size, partial(estimates.estimate, workload, configs))
            rates[WAYS[2]].time(len(some), partial(once.lower_and_measure, workload, some))
            pairs += 1
    print(f"{given.network} on {given.machines} machines, {pairs} layers of machines, per core:")
    for way, rate in rates.items():
        print(f"{way:24} {rate.points / rate.seconds:12,.0f} a second ({rate.points:,} points)")


if __name__ == "__main__":
    main()
