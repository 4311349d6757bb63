"""One of several processes that tune the same workload together: `python -m … STORE TRIALS`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.search import TrialStore
from tilewright.targets.base import Lowered, Measurements
from tilewright.targets.fault_injection import FaultyTarget
from tilewright.targets.workload import parse_workload

WORK = parse_workload("conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1")


class SlowTarget(FaultyTarget):
    """A target with slow batches, so that the processes overlap. It may die in the third batch.

    A process that does not die waits in its second batch until the file `dead` exists beside the
    store. Otherwise the others could make every trial before the dying process starts its third
    batch.
    """

    batches = 0

    def measure(self, lowered: Lowered) -> Measurements:
        self.batches += 1
        time.sleep(0.02)
        if "--die" in sys.argv:
            if self.batches == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        elif self.batches == 2:
            while not DEAD.exists():
                time.sleep(0.02)
        return super().measure(lowered)


if __name__ == "__main__":
    store, trials = sys.argv[1:3]
    DEAD = Path(store).with_name("dead")
    explorer = make_explorer("random", {})
    with TrialStore(Path(store), own=False) as opened:
        for done in tune(
            SlowTarget({}), WORK, explorer, trials=int(trials), batch=4, store=opened, shared=True
        ):
            print(done.index, len(done.measured), flush=True)
