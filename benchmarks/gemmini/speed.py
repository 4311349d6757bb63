"""Measures the speed of Gemmini's cycle simulator in kernels per second on one core.

    python -m benchmarks.gemmini.speed [--workload W] [--schedules N]

The kernels are the vendor rule's schedule of a 512×512×512 matrix product, and random schedules of
its space, grouped by form. Times are processor times.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import numpy as np

from tilewright.targets import make_target
from tilewright.targets.gemmini.isa import CommandStream
from tilewright.targets.gemmini.lowering.batch import COMMANDS, stream_from
from tilewright.targets.gemmini.lowering.schedule_space import LOOP
from tilewright.targets.gemmini.target import GemminiTarget
from tilewright.targets.gemmini.timing import time_stream
from tilewright.targets.workload import parse_workload

WORKLOAD = "dense:n=512,c=512,o=512"
EPILOGUE = "bias, >> even 8, min 127, max 0"


def main() -> None:
    """Print one line per form of schedule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default=WORKLOAD)
    parser.add_argument("--schedules", type=int, default=24)
    options = parser.parse_args()
    target, workload = make_target("gemmini"), parse_workload(options.workload, EPILOGUE)
    assert isinstance(target, GemminiTarget)
    knobs, rng = target.space(workload).knobs, np.random.default_rng(0)
    drawn = np.stack([rng.integers(0, len(knob.values), options.schedules) for knob in knobs], 1)
    lowered = target.lower(workload, drawn.astype(np.int32))
    streams: dict[str, list[CommandStream]] = defaultdict(list)
    rule = target.baseline(workload).lowered.programs[COMMANDS][0]
    streams["the rule's loop"].append(stream_from(rule))
    form = [knob.name for knob in knobs].index("form")
    for row in np.flatnonzero(lowered.ok).tolist():
        kind = "loops" if knobs[form].values[drawn[row, form]] == LOOP else "nests"
        streams[kind].append(stream_from(lowered.programs[COMMANDS][row]))
    for kind, own in streams.items():
        seconds, cycles = 0.0, 0
        for stream in own:
            begin = time.process_time()
            cycles += time_stream(stream, target.spec).total
            seconds += time.process_time() - begin
        print(
            f"{kind}: {len(own)} schedules, {cycles / len(own):,.0f} cycles each: "
            f"{len(own) / seconds:.1f} per second, {seconds / cycles * 1e9:.0f} ns per cycle"
        )


if __name__ == "__main__":
    main()
