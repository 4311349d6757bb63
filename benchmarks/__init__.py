"""Compares and measures, a command each: `python -m benchmarks.NAME`."""

import tilewright  # noqa: F401  before any benchmark loads onnxruntime, whose telemetry this turns off
