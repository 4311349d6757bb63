"""Options of a build.

The command-line options of `tilewright build`, the form of its Prefect deployment and the keyword
arguments of `tilewright.build` are derived from `BuildOptions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from tilewright.core.options import CliOption, CommandOptions, OptionalPath
from tilewright.tuning.choices import with_networks
from tilewright.tuning.options import (
    InputShapes,
    Precision,
    Seed,
    Target,
    precision_in_target,
)

DEFAULT_TRIALS = 16


class BuildOptions(CommandOptions):
    """Options of a build.

    Schedules come from a tuned folder, or else from `trials` measurements of each workload.
    """

    model: Annotated[str, CliOption(positional=True, value="model")] = Field(
        min_length=1,
        description="An ONNX, .tflite or torch.export file, or a name from 'tilewright zoo'.",
        json_schema_extra=with_networks,
    )
    out: Annotated[Path, CliOption(value="path")] = Field(description="Folder for the artifact.")
    target: Target = "vta-pynq"
    precision: Precision = ""
    schedules: Annotated[OptionalPath, CliOption(value="path", metavar="DIR")] = Field(
        default=None, description="Use the schedules of this output directory of 'tilewright tune'."
    )
    trials: Annotated[int, CliOption(default="16, without --schedules", shows_limits=True)] = Field(
        default=DEFAULT_TRIALS,
        ge=0,
        le=100_000,
        description="Tune during the build with this many measurements per workload; 0 uses the "
        "schedules with the best estimates.",
    )
    calibration: Annotated[OptionalPath, CliOption(value="path")] = Field(
        default=None,
        description="Calibration samples for a float model: an NPZ file, or a folder of NPZ files.",
    )
    keep_float: Annotated[tuple[str, ...], CliOption(metavar="NAME,…")] = Field(
        default=(), description="Operators that run on the CPU in floating point."
    )
    per_channel: bool = Field(
        default=False,
        description="Quantise the weights of a float model per output channel where it improves "
        "accuracy; costs one more cycle per 16 values.",
    )
    # None takes the default for the kind of model (`networks.tolerances`).
    tolerance: Annotated[
        float | None,
        CliOption(default="0.1 for a quantised model, 0.5 for a float model", shows_limits=True),
    ] = Field(
        default=None,
        ge=0,
        description="Largest accepted relative error of the outputs, compared with "
        "onnxruntime on the source model.",
    )
    one_pass: bool = Field(
        default=False,
        description="Round the weights of a quantised model again, instead of computing its scales "
        "exactly with two passes per layer: faster but less accurate.",
    )
    input_shapes: InputShapes = Field(default_factory=dict)
    sizes: Annotated[
        dict[str, tuple[int, ...]],
        CliOption(metavar="NAME=1,8", pair="NAME=1,8", separator=","),
    ] = Field(
        default_factory=dict,
        description="Compile one library per size of a dynamic dimension; at run time, the "
        "size that fits is chosen. Only for the target cpu.",
    )
    bare: bool = Field(
        default=False, description="Fail if a board cannot run the network without Python."
    )
    ignore_nan: bool = Field(
        default=False,
        description="For the target cpu: operators min and max without a kernel may return "
        "a number where an operand is NaN; slightly faster.",
    )
    seed: Annotated[Seed, CliOption(offered=False)] = 0
    allow_code: bool = Field(
        default=False,
        description="Allow reading a torch.export file. Such a file can run any code with "
        "your user's rights when it is read.",
    )

    @model_validator(mode="before")
    @classmethod
    def _precision_of_target(cls, values: Any) -> Any:
        return precision_in_target(values, "vta-pynq")

    @model_validator(mode="before")
    @classmethod
    def _exact(cls, values: Any) -> Any:
        """Convert the option `exact=False` of earlier versions to `one_pass=True`."""
        if not isinstance(values, dict) or "exact" not in values:
            return values
        return {k: v for k, v in values.items() if k != "exact"} | {"one_pass": not values["exact"]}

    @property
    def exact(self) -> bool:
        """True if the scales of a quantised model are computed exactly, in two passes per layer."""
        return not self.one_pass
