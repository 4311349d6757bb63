"""Measures how long the simulated accelerator takes for one image of a whole int8 network.

    python -m benchmarks.artifacts.inference_time [resnet18 …] [--target vta-pynq] [--trials 0]

Each network is built as `tilewright build` builds it. It is then loaded and run in a separate
process, so that the memory is that of the run alone. With `--artifacts DIR`, the artifacts are kept
in DIR, and existing ones are used. The columns of the table are:

- load: seconds to read the folder, including the comparison of all digests;
- first, warm: seconds of the first image, and the minimum over five more images;
- GMAC/s: multiply-accumulates of the network per second of the warm time;
- peak: the largest resident memory of the process;
- stream, layers: simulated cycles of the command streams, and the sum of the cycles of all layers
  if each runs alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

MEASURED = """
import json, sys, time
from pathlib import Path
import numpy as np
from tilewright.networks.artifact import load
begin = time.perf_counter()
artifact = load(Path(sys.argv[1]), allow_code=True)
loaded = time.perf_counter() - begin
random = np.random.default_rng(0)
arrays = {
    value.name: random.standard_normal(value.shape).astype(value.dtype)
    if value.dtype.startswith("float")
    else random.integers(0, 100, value.shape).astype(value.dtype)
    for value in artifact.inputs
}
seconds = []
for _ in range(6):
    begin = time.perf_counter()
    artifact.infer(arrays)
    seconds.append(time.perf_counter() - begin)
# getrusage tells of the process that started this one as well.
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
print(json.dumps([loaded, seconds[0], min(seconds[1:]), peak]))
"""


def main() -> None:
    """Print a table with one row per network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=["resnet18", "mobilenet_v1", "digits_cnn"])
    parser.add_argument("--target", default="vta-pynq")
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--artifacts", type=Path)
    options = parser.parse_args()
    head = ("network", "load s", "first s", "warm s", "GMAC/s", "peak MiB", "stream", "layers")
    print(f"{head[0]:14}" + "".join(f"{name:>11}" for name in head[1:]))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.artifacts or Path(temporary)
        for network in options.networks:
            print(row(network, folder / network, options.target, options.trials), flush=True)


def row(network: str, folder: Path, target: str, trials: int) -> str:
    """Build a network if necessary, time it, and return its row of the table."""
    if not (folder / "manifest.json").exists():
        from tilewright.flows.build import build_artifact
        from tilewright.search import LocalRunner
        from tilewright.tuning.build_options import BuildOptions

        build_artifact(
            LocalRunner(), BuildOptions(model=network, out=folder, target=target, trials=trials)
        )
    manifest = json.loads((folder / "manifest.json").read_text())
    done = subprocess.run(
        [sys.executable, "-P", "-c", MEASURED, str(folder)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded, first, warm, peak = json.loads(done.stdout)
    cycles, macs = manifest["cycles"], manifest["macs"]["accelerator"]
    return (
        f"{network:14}{loaded:11.3f}{first:11.3f}{warm:11.3f}{macs / warm / 1e9:11.2f}"
        f"{peak / (1 << 20):11.0f}{cycles['stream']:11,}{cycles['sum_of_layers']:11,}"
    )


if __name__ == "__main__":
    main()
