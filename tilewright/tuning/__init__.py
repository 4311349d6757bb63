"""Tuning a network without orchestration: options in, an output folder out.

    from tilewright.tuning.plain import tune_network

    summary = tune(model="resnet18", target="vta-pynq", trials=64, out="tuned/resnet18")
    summary = tune_network(TuningOptions(model="mine.onnx"), emit=print)

Repeating a call resumes a run that was stopped. Nothing here knows Prefect, MLflow or a terminal;
`flows.tuning` puts both around the same steps (`tuning.tune_network`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.tuning.options import TuningOptions, parse_options

if TYPE_CHECKING:
    from tilewright.tuning.outputs import Summary

__all__ = ["TuningOptions", "parse_options", "tune"]


def tune(**options: Any) -> Summary:
    """`plain.tune_network` with the fields of `TuningOptions` by name, without pictures. Raises as
    it does, and `OptionsError`."""
    from tilewright.tuning.plain import tune_network

    return tune_network(parse_options(**options))
