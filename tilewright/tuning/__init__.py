"""Tuning a network without orchestration: options in, an output folder out.

    import tilewright.tuning

    summary = tuning.tune(model="resnet18", target="vta-pynq", trials=64, out="tuned/resnet18")
    summary = tuning.tune_network(tuning.TuningOptions(model="mine.onnx"), emit=print)

Repeating a call resumes a run that was stopped. Nothing here knows Prefect, MLflow or a terminal;
`flows.tuning` puts both around the same steps (`tuning.tune_network`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.tuning.options import TuningOptions, parse_options

if TYPE_CHECKING:
    from tilewright.tuning.events import Listener
    from tilewright.tuning.fusion_interface import Decide
    from tilewright.tuning.outputs import Picture, Summary

__all__ = ["TuningOptions", "parse_options", "tune", "tune_network"]


def tune(**options: Any) -> Summary:
    """`tune_network` with the fields of `TuningOptions` by name. Raises `OptionsError`, too."""
    return tune_network(parse_options(**options))


def tune_network(
    options: TuningOptions,
    emit: Listener | None = None,
    picture: Picture | None = None,
    decide: Decide | None = None,
) -> Summary:
    """Tune every workload of a network into `options.folder` (`tuning.plain.tune_network`)."""
    from tilewright.tuning import plain
    from tilewright.tuning.events import ignore

    return plain.tune_network(options, emit or ignore, picture, decide)
