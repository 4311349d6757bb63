"""Times inferences of one network by one engine, alone in its process; `benchmarks.cpu` lets the
engines take turns.

    python -m benchmarks.timed_network tilewright ARTIFACT
    python -m benchmarks.timed_network onnxruntime NETWORK --threads 2
    python -m benchmarks.timed_network baseline NETWORK --threads 2

Prints the seconds of each inference as a JSON list, after some that warm up.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tilewright.targets.cpu.compile import llvm_target
from tilewright.targets.cpu.spec import CpuSpec

WARM_UP_SECONDS, SECONDS, LEAST = 0.5, 2.0, 3


def main() -> None:
    """Print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", choices=("tilewright", "onnxruntime", "baseline"))
    parser.add_argument("network")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    infer = ENGINES[options.engine](options.network, options.threads)
    timed(infer, WARM_UP_SECONDS)
    print(json.dumps(timed(infer, SECONDS)))


def timed(infer: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each inference, for so long and of at least three."""
    found: list[float] = []
    while sum(found) < seconds or len(found) < LEAST:
        begin = time.perf_counter()
        infer()
        found.append(time.perf_counter() - begin)
    return found


def tilewright(folder: str, threads: int) -> Callable[[], object]:
    """A library that `tilewright build` made; its target says how many threads."""
    from tilewright.networks.artifact import CompiledArtifact, load

    artifact = load(Path(folder), allow_code=True)
    assert isinstance(artifact, CompiledArtifact)
    rng = np.random.default_rng(0)
    arrays = {
        value.name: rng.standard_normal(value.shape).astype(value.dtype)
        for value in artifact.inputs
    }
    return lambda: artifact.infer(arrays)


def onnxruntime(network: str, threads: int) -> Callable[[], object]:
    """What a user of onnxruntime gets: all its optimisations, and so many threads."""
    import onnxruntime

    from tilewright.networks.model_source import model_with_weights

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = model_with_weights(network).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    arrays = {
        each.name: rng.standard_normal(each.shape).astype(np.float32)
        for each in session.get_inputs()
    }
    return lambda: session.run(None, arrays)


def baseline(network: str, threads: int) -> Callable[[], object]:
    """What a user of TVM gets without tuning: its default pipeline, for this very processor."""
    import tvm
    from tvm import relax

    from tilewright import networks

    whole = networks.load(network).whole
    target = llvm_target(CpuSpec.parse(f"threads={threads}"))
    machine = relax.VirtualMachine(tvm.compile(whole.flat.module, target=target), tvm.cpu())
    arrays = [tvm.runtime.tensor(array) for array in whole.seeded_inputs().values()]
    return lambda: machine["main"](*arrays)


ENGINES: dict[str, Callable[[str, int], Callable[[], object]]] = {
    "tilewright": tilewright, "onnxruntime": onnxruntime, "baseline": baseline,
}  # fmt: skip

if __name__ == "__main__":
    main()
