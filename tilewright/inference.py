"""Functions for programs that only run inferences: load a model, and load or run an artifact.

This module imports none of the tuning code. Call the functions as `tilewright.load`,
`tilewright.run` and `tilewright.load_model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.networks import load as load_network

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.networks.artifact import Profile
    from tilewright.networks.artifact.library_profile import LibraryProfile
    from tilewright.networks.artifact.session import InferenceSession
    from tilewright.networks.network import Network


def load(
    folder: str | Path, *, threads: int | None = None, allow_code: bool = False
) -> InferenceSession:
    """Open an artifact for many inferences, like onnxruntime's `InferenceSession`.

    Several threads may use the session at the same time.

    Args:
        folder: folder of the artifact.
        threads: number of threads that a library for the target `cpu` uses; by default the number
            that it was built for.
        allow_code: allow machine code in an artifact that you did not build yourself, as for `run`.

    Returns:
        The session.

    Raises:
        ArtifactError: the artifact is damaged, `threads` is invalid, or the artifact contains
            machine code that is not allowed.

    >>> session = tilewright.load("built/digits")
    >>> [(value.name, value.shape) for value in session.get_inputs()]
    [('input', (1, 1, 8, 8))]
    >>> (scores,) = session.run(["fc.out"], {"input": np.zeros((1, 1, 8, 8), np.float32)})
    >>> scores.shape
    (1, 10)
    """
    from tilewright.networks.artifact.session import open_session

    return open_session(Path(folder), threads, allow_code=allow_code)


def run(
    folder: str | Path, inputs: Mapping[str, NDArray[Any]], *, allow_code: bool = False
) -> tuple[dict[str, NDArray[Any]], Profile | LibraryProfile]:
    """Run one inference of an artifact, on the simulator of its accelerator or on this CPU.

    Artifacts for the target `cpu`, and artifacts that leave a part of the network to the CPU,
    contain machine code. The code runs only if its signature proves that you built the artifact in
    the current workspace (`.tilewright/` or `TILEWRIGHT_HOME`), or if you set `allow_code`.

    Args:
        folder: folder of the artifact.
        inputs: arrays by input name, with the shapes of the network's inputs.
        allow_code: allow machine code in an artifact that you did not build yourself.

    Returns:
        The outputs by name, and a profile of the time per layer.

    Raises:
        ArtifactError: the artifact is damaged, or contains machine code that is not allowed.
        InputError: an array does not match its input.

    >>> image = np.zeros((1, 1, 8, 8), np.float32)
    >>> outputs, profile = tilewright.run("built/digits", {"input": image})
    >>> outputs["fc.out"].shape
    (1, 10)
    """
    from tilewright.networks import artifact

    return artifact.load(Path(folder), allow_code=allow_code).run(inputs)


def load_model(source: str | Path, **options: Any) -> Network:
    """Load a built-in network by name, or an ONNX, TensorFlow Lite or torch.export file.

    Args:
        source: name of a built-in network, or path of a model file.
        **options: options of `tilewright.networks.load`. `input_shapes` fixes dynamic input shapes.
            `seed` sets the random weights of a built-in network. `calibration` is the path of
            samples. `sandbox` reads an untrusted file in a child process. `allow_code` permits a
            torch.export file, which can run any code when it is read.

    Returns:
        The network.

    Raises:
        UnknownName: the source is neither a built-in network nor an existing file.
        ModelFileError: the file cannot be read.

    >>> network = tilewright.load_model("digits_cnn")
    >>> [str(each.workload) for each in network.workloads(block_in=16, block_out=16)][0]
    'conv2d:n=1,c=16,h=8,w=8,o=16,k=1,s=1,p=0'
    """
    return load_network(source, **options)
