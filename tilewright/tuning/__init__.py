"""Tuning runs: from options to an output directory.

    from tilewright.flows.tuning import tune_network

    tuned = tune_network(LocalRunner(emit=print), TuningOptions.parse(model="mine.onnx"))

Repeating a call resumes a run that was stopped. This package does not depend on Prefect, MLflow or
a terminal.
"""

from tilewright.tuning.options import TuningOptions

__all__ = ["TuningOptions"]
