"""Handles the model: import, normalisation, operator report, workload extraction, the built-in zoo.

    network = networks.load("resnet18")             # or an ONNX, .tflite or torch.export file
    network = networks.load("m.onnx", sandbox=True) # a file of a stranger, read in a child process
    network.report(block_in=16, block_out=16)       # what becomes of every operator
    network.workloads(block_in=16, block_out=16)    # (workload, calls, operator names)

The default epilogue of a workload is `plain`: one shape, one workload, with the benchmark epilogue
`>> 8, min 127, max 0`. It is the only one defined for every network: a float model fixes no scale
at which a residual would reach the accumulator. `epilogue="full"` keeps bias and residual as fused
(`networks.epilogues` holds the rule). Importing this package loads neither ONNX
nor TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.networks import zoo

if TYPE_CHECKING:
    from tilewright.networks.network import Network

__all__ = ["load", "zoo_names"]


def load(
    source: str | Path,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    *,
    sandbox: bool = False,
    calibration: Path | None = None,
    allow_code: bool = False,
) -> Network:
    """A built-in network by name, an ONNX, TensorFlow Lite or torch.export file
    (`networks.network.load`)."""
    from tilewright.networks.network import load as load_network

    return load_network(
        source, input_shapes, seed, sandbox=sandbox, calibration=calibration, allow_code=allow_code
    )


def zoo_names() -> list[str]:
    """The built-in networks."""
    return zoo.names()
