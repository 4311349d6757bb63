"""Pipeline that compares the latency of a network with other inference engines.

build_artifact → write_model → time_engines
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from tilewright.evaluation.engines.engine import OWN, EngineError, check_engines
from tilewright.evaluation.engines.options import BenchmarkOptions
from tilewright.evaluation.engines.timing import Rounds, Timed, time_engines
from tilewright.flows.build import build_artifact
from tilewright.networks.artifact import CompiledArtifact, SizedLibrary, load
from tilewright.networks.model_source import model_with_weights
from tilewright.networks.torch_export import TORCH_SUFFIXES
from tilewright.search import LocalRunner
from tilewright.tuning.build_options import BuildOptions

MODEL = "model.onnx"


@dataclass(frozen=True)
class Benchmark:
    """Result of a benchmark.

    Attributes:
        network: name of the network.
        threads: number of threads of each engine.
        timed: measured latencies of the engines.
        warnings: warnings of the build.
    """

    network: str
    threads: int
    timed: Timed
    warnings: tuple[str, ...] = ()


def benchmark(run: LocalRunner, options: BenchmarkOptions) -> Benchmark:
    """Build a network, and time the artifact and the other engines alternately.

    Args:
        run: runner that executes the steps.
        options: options of the benchmark. If they name an existing artifact, nothing is built.

    Returns:
        The measured latencies of all engines. The artifact's engine is called `tilewright`.

    Raises:
        EngineError: an engine is not installed or does not support the network, or the existing
            artifact is not a CPU library for a single input size.
        UnknownName: an engine or the network does not exist.
        TilewrightError: the build fails, or the model cannot be read.
    """
    check_engines(options.against)
    threads = options.threads or _cores()
    with tempfile.TemporaryDirectory() as folder:
        built, warnings = options.artifact, tuple[str, ...]()
        if built is None:
            built = Path(folder) / "artifact"
            warnings = build_artifact(run, _build_options(options, built, threads)).warnings
        loaded = load(built, allow_code=True)
        if isinstance(loaded, SizedLibrary):
            raise EngineError(
                f"{built} was built for several sizes, but engines are compared at a single "
                "size; build it with --input-shape"
            )
        if not isinstance(loaded, CompiledArtifact):
            raise EngineError(
                f"{built} was built for {loaded.target}, which is simulated and cannot be "
                "timed; give a library that 'tilewright build --target cpu' built"
            )
        source = run(write_model, options.model, options.input_shapes, Path(folder))
        timed = run(
            time_engines,
            {OWN: built} | dict.fromkeys(options.against, source),
            loaded.check_inputs(),
            threads,
            Rounds(options.rounds, 3 * options.rounds, options.seconds),
            run.emit,
        )
    return Benchmark(loaded.name, threads, timed, warnings)


def write_model(model: str, input_shapes: Mapping[str, tuple[int, ...]], folder: Path) -> Path:
    """Write a network as an ONNX file with static input shapes, for the other engines.

    Args:
        model: path or name of the network.
        input_shapes: fixed shape of each dynamic input, by name.
        folder: folder for the file.

    Returns:
        Path of the file.

    Raises:
        EngineError: the other engines cannot read the model.
    """
    if Path(model).suffix in TORCH_SUFFIXES:
        raise EngineError(
            f"'{model}' is a torch.export file, which the other engines cannot read; export "
            "the model with torch.onnx.export"
        )
    result = model_with_weights(model)
    for info in result.graph.input:
        if info.name in input_shapes:
            dimensions, sizes = info.type.tensor_type.shape.dim, input_shapes[info.name]
            if len(dimensions) != len(sizes):
                raise EngineError(
                    f"the input '{info.name}' has {len(dimensions)} axes, but --input-shape "
                    f"gives {len(sizes)}; give one size per axis"
                )
            for dimension, size in zip(dimensions, sizes, strict=True):
                dimension.dim_value = size
    path = folder / MODEL
    large = result.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF
    onnx.save(result, path, save_as_external_data=large)
    return path


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _build_options(options: BenchmarkOptions, out: Path, threads: int) -> BuildOptions:
    target = f"cpu:threads={threads}"
    if options.precision:
        target += f",precision={options.precision}"
    return BuildOptions(
        model=options.model, out=out, target=target, schedules=options.schedules,
        trials=options.trials, input_shapes=options.input_shapes,
    )  # fmt: skip
