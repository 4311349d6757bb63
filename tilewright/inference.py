"""Reads networks and runs built ones: what a program needs that only infers.

This module loads nothing of tuning. Use its functions as `tilewright.load`, `tilewright.run` and
`tilewright.load_model`.
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
    """Open a built network for many inferences, as onnxruntime's `InferenceSession`.

    `threads` is how many a library of the target `cpu` uses, by default as many as it was built
    for. Threads of the caller may run one session at the same time. `allow_code` lets machine code
    of a folder run that you did not build yourself, as for `run`. Raises `ArtifactError` for a
    damaged folder and for code that is not allowed.

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
    """One inference of a built network, on its simulated accelerator or this CPU.

    `inputs` are arrays by name, in the shapes of the network's inputs. Returns the outputs by name,
    and where the time goes. Folders of the target `cpu`, and of networks with work left to the CPU,
    hold machine code. It runs if you built the folder yourself in the workspace in force
    (`.tilewright/` or `TILEWRIGHT_HOME`), which its signature proves, or with `allow_code`. Raises
    `ArtifactError` for a damaged folder and for code that is not allowed, and `InputError` for
    arrays that do not fit.

    >>> image = np.zeros((1, 1, 8, 8), np.float32)
    >>> outputs, profile = tilewright.run("built/digits", {"input": image})
    >>> outputs["fc.out"].shape
    (1, 10)
    """
    from tilewright.networks import artifact

    return artifact.load(Path(folder), allow_code=allow_code).run(inputs)


def load_model(source: str | Path, **options: Any) -> Network:
    """Load a built-in network by name, or an ONNX, TensorFlow Lite or torch.export file.

    `options` are those of `tilewright.networks.load`: `input_shapes` fixes dynamic inputs, `seed`
    draws the weights of a built-in network, `calibration` names samples, `sandbox` reads a
    stranger's file in a child process, and `allow_code` permits a torch.export file, which can run
    any code when it is read. Raises `UnknownName`, and `ModelFileError` for a file that
    cannot be read.

    >>> network = tilewright.load_model("digits_cnn")
    >>> [str(each.workload) for each in network.workloads(block_in=16, block_out=16)][0]
    'conv2d:n=1,c=16,h=8,w=8,o=16,k=1,s=1,p=0'
    """
    return load_network(source, **options)
