"""Defines the options of a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_TRIALS = 16


@dataclass(frozen=True)
class BuildOptions:
    """What `tilewright build` is asked to do. Schedules come from a tuned folder, or else from so
    many trials of each workload. `per_channel` is that of `networks.quantisation.Options`. `bare`
    refuses what the CPU would have to compute. A model with scales that no shifts reach is `exact`,
    or takes one pass a layer. `allow_code` permits the code that a torch.export file may run when
    it is read. `tolerance` bounds the relative error of the outputs; None takes the
    default for the kind of model (`networks.tolerances`). A library has a part for each
    combination of the `sizes` of dynamic dimensions. With `ignore_nan`, maxima and minima outside
    of kernels may give a number where an operand is NaN."""

    model: str
    out: Path
    target: str = "vta-pynq"
    schedules: Path | None = None
    trials: int = DEFAULT_TRIALS
    calibration: Path | None = None
    keep_float: tuple[str, ...] = ()
    per_channel: bool = False
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bare: bool = False
    exact: bool = True
    tolerance: float | None = None
    seed: int = 0
    allow_code: bool = False
    ignore_nan: bool = False
