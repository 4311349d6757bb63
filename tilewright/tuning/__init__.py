"""Tuning runs, from the options to the files of an output directory.

    from tilewright.flows.tuning import tune_network

    tuned = tune_network(LocalRunner(emit=print), TuningOptions.parse(model="mine.onnx"))

Repeating the same call resumes a run that was stopped. This package depends neither on Prefect nor
on MLflow nor on a terminal.
"""

from tilewright.tuning.options import TuningOptions

__all__ = ["TuningOptions"]
