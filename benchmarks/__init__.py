"""Benchmarks of Tilewright. Each module is a command: `python -m benchmarks.FOLDER.NAME`."""

import tilewright  # noqa: F401  before any benchmark loads onnxruntime, whose telemetry this turns off
