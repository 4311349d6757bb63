"""Options of `tilewright benchmark`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tilewright.core.options import CliOption, CommandOptions, OptionalPath
from tilewright.tuning.options import InputShapes, Precision


class BenchmarkOptions(CommandOptions):
    """Options of a benchmark.

    The library is that of `artifact`, or it is built from the schedules of a tuned folder or from
    `trials` measurements of each workload.
    """

    model: Annotated[str, CliOption(positional=True, value="model")] = Field(
        description="An ONNX, .tflite or torch.export file, or a name from 'tilewright zoo'."
    )
    against: Annotated[tuple[str, ...], CliOption(metavar="NAME,…")] = Field(
        default=("onnxruntime",),
        description="onnxruntime, openvino (in float32), openvino-default (in the precision that "
        "it chooses).",
    )
    artifact: Annotated[OptionalPath, CliOption(value="path", metavar="ART")] = Field(
        default=None,
        description="A library that 'tilewright build' made, instead of a new one. Its code runs "
        "with your rights.",
    )
    schedules: Annotated[OptionalPath, CliOption(value="path", metavar="DIR")] = Field(
        default=None, description="A folder that 'tilewright tune' wrote."
    )
    trials: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Measurements a workload; 0 takes the kernels' own rules.",
    )
    threads: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=0, ge=0, description="Threads of every engine; 0 for all cores."
    )
    # A benchmark ends after so many quiet rounds, or three times as many of any kind.
    rounds: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=20, ge=3, le=1000, description="Rounds in which no engine waited for a core."
    )
    seconds: Annotated[float, CliOption(shows_limits=True)] = Field(
        default=0.2, ge=0.01, le=60, description="What a round takes an engine."
    )
    precision: Precision = ""
    input_shapes: InputShapes = Field(default_factory=dict)
