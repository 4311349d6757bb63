"""Child process that runs one network with one engine. `timing` starts it.

The process answers two calls. The call `open` gets the input arrays by name, loads the network,
runs one inference and returns its outputs and the peak memory of the process. The call `time` runs
inferences for a given number of seconds and returns their durations.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Header, arguments, serve
from tilewright.core.files import as_int, as_number, as_text
from tilewright.evaluation.engines.engine import Infer, open_engine

WARM_UP_SECONDS = 0.3
TASKS = Path("/proc/self/task")
STATUS = Path("/proc/self/status")


class _Engine:
    infer: Infer
    peak_bytes = 0

    def answer(self, header: Header, arrays: dict[str, NDArray[Any]]) -> tuple[Header, Arrays]:
        if header["call"] == "open":
            outputs = self._open(header, arrays)
            return {"peak_bytes": self.peak_bytes}, outputs
        return self._time(as_number(header["seconds"]))

    def _open(self, header: Header, arrays: dict[str, NDArray[Any]]) -> Arrays:
        engine, source = as_text(header["engine"]), Path(as_text(header["source"]))
        self.infer = open_engine(engine, source, as_int(header["threads"]), arrays)
        outputs = {str(place): np.array(array) for place, array in enumerate(self.infer())}
        self.peak_bytes = _peak_bytes()
        until = time.perf_counter() + WARM_UP_SECONDS
        while time.perf_counter() < until:
            self.infer()
        return outputs

    def _time(self, seconds: float) -> tuple[Header, Arrays]:
        """Run inferences for some seconds and measure their durations.

        An untimed inference runs first, to fill the caches.

        Args:
            seconds: duration of the measurement. At least one inference is timed.

        Returns:
            A header with the mean processor seconds per inference (`cpu`) and the number of threads
            that waited for a core, averaged over the measurement (`waited`); and the duration of
            each inference in seconds.
        """
        self.infer()
        taken: list[float] = []
        waited, used, begun = _waited_seconds(), time.process_time(), time.perf_counter()
        while time.perf_counter() - begun < seconds or not taken:
            start = time.perf_counter()
            self.infer()
            taken.append(time.perf_counter() - start)
        whole = time.perf_counter() - begun
        return {
            "cpu": (time.process_time() - used) / len(taken),
            "waited": (_waited_seconds() - waited) / whole,
        }, {"seconds": np.array(taken)}


def _peak_bytes() -> int:
    """Return the peak memory of this process in bytes, including mapped files; 0 if unknown."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def _waited_seconds() -> float:
    """Return the total seconds for which this process's threads waited for a core; 0 if unknown."""
    result = 0
    for task in TASKS.glob("*/schedstat"):
        try:
            result += int(task.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return result / 1e9


if __name__ == "__main__":
    arguments()
    serve(_Engine().answer)
