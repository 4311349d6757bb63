"""Tuning a network without orchestration: options in, an output folder out.

    import tuning

    summary = tuning.tune(model="resnet18", target="vta-pynq", trials=64, out="tuned/resnet18")
    summary = tuning.tune_network(tuning.TuningOptions(model="mine.onnx"), emit=print)

Repeating a call resumes a run that was stopped. Nothing here knows Prefect, MLflow or a terminal;
`flows.tuning` puts both around the same steps (`tuning.run`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuning.options import TuningOptions, parse_options

if TYPE_CHECKING:
    from tuning.events import Listener
    from tuning.fusing import Decide
    from tuning.outputs import Picture, Summary

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
    from tuning import plain
    from tuning.events import ignore

    return plain.tune_network(options, emit or ignore, picture, decide)
