"""Options of `tilewright benchmark`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tilewright.core.options import CliOption, CommandOptions, OptionalPath
from tilewright.tuning.options import InputShapes, Precision


class BenchmarkOptions(CommandOptions):
    """Options of a benchmark.

    The benchmark uses the library in `artifact` if it is given. Otherwise it builds a library,
    either from the schedules in the output directory `schedules` or after tuning each workload with
    `trials` trials.
    """

    model: Annotated[str, CliOption(positional=True, value="model")] = Field(
        description="An ONNX, .tflite or torch.export file, or a name from 'tilewright zoo'."
    )
    against: Annotated[tuple[str, ...], CliOption(metavar="NAME,…")] = Field(
        default=("onnxruntime",),
        description="Engines to compare with: onnxruntime, openvino (in float32), "
        "openvino-default (in the precision that it chooses).",
    )
    artifact: Annotated[OptionalPath, CliOption(value="path", metavar="ART")] = Field(
        default=None,
        description="Use a library that 'tilewright build' built instead of building one. "
        "Its code runs with your user's rights.",
    )
    schedules: Annotated[OptionalPath, CliOption(value="path", metavar="DIR")] = Field(
        default=None, description="Use the schedules of this output directory of 'tilewright tune'."
    )
    trials: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Measurements per workload; 0 uses the rule schedules.",
    )
    threads: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=0, ge=0, description="Number of threads of every engine; 0 for all cores."
    )
    # The benchmark ends after this many quiet rounds, or after three times as many in total.
    rounds: Annotated[int, CliOption(shows_limits=True)] = Field(
        default=20,
        ge=3,
        le=1000,
        description="Number of rounds in which no engine had to wait for a core.",
    )
    seconds: Annotated[float, CliOption(shows_limits=True)] = Field(
        default=0.2, ge=0.01, le=60, description="Seconds for which each engine runs per round."
    )
    precision: Precision = ""
    input_shapes: InputShapes = Field(default_factory=dict)
