"""Load trained networks: import, normalisation, operator report and workload extraction.

The package also contains the built-in networks (`networks.zoo`). Importing it loads neither ONNX
nor TVM.

    network = networks.load("resnet18")             # or an ONNX, .tflite or torch.export file
    network = networks.load("m.onnx", sandbox=True) # an untrusted file, read in a child process
    network.report(block_in=16, block_out=16)       # where each operator runs, and why
    network.workloads(block_in=16, block_out=16)    # (workload, calls, operator names)

The default epilogue of `load(...).workloads` is `full`: the bias, residual and activation that are
fused into the layer. `networks.epilogues` describes the three epilogue modes.
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
    """Load a built-in network, or an ONNX, TensorFlow Lite or torch.export file.

    Args:
        source: name of a built-in network, or path of a model file.
        input_shapes: shape for each dynamic input, by input name.
        seed: seed for the random weights of a built-in network.
        sandbox: read the file in a child process with limits on memory and time. Use it for
            untrusted files.
        calibration: path of the calibration samples, as `quantisation.samples_for` reads them.
        allow_code: permit the code that a torch.export file may run when it is read.

    Returns:
        The network. It is imported into TVM on first use.

    Raises:
        UnknownName: `source` is neither a built-in network nor an existing file.
        ModelFileError: the file cannot be read or is not a valid model.
    """
    from tilewright.networks.network import load as load_network

    return load_network(
        source, input_shapes, seed, sandbox=sandbox, calibration=calibration, allow_code=allow_code
    )


def zoo_names() -> list[str]:
    """Return the names of the built-in networks."""
    return zoo.names()
