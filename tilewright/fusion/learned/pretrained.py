"""Loads the pretrained fusion models that are part of the package.

`python -m benchmarks.fusion.training` trained them on labelled variants of six networks of the zoo.
Each run trains them further on its own simulations.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.core.files import digest
from tilewright.fusion.learned.graph_model import GraphModel, ModelError
from tilewright.fusion.learned.policy import Policy

MODEL, POLICY = "graphs.ubj", "policy.ubj"
FOLDER = Path(__file__).parent / "trained"


def shipped_digest(folder: Path = FOLDER) -> str:
    """Return a digest of the pretrained models in a folder, as text.

    Args:
        folder: folder of the model files. A missing file counts as empty.

    Raises:
        ModelError: a file cannot be read.
    """
    held = []
    for name in (MODEL, POLICY):
        path = folder / name
        try:
            held.append(digest(path.read_bytes()))
        except FileNotFoundError:
            held.append("")
        except OSError as error:
            raise ModelError(
                f"cannot read {path}: {error.strerror}; reinstall the package"
            ) from None
    return digest(" ".join(held).encode())


def shipped_models(seed: int = 0, folder: Path = FOLDER) -> tuple[GraphModel, Policy]:
    """Load the graph model and the policy that come with Tilewright.

    A model whose file is missing stays untrained.

    Args:
        seed: seed of the models.
        folder: folder of the model files.

    Raises:
        ModelError: a file is damaged or cannot be read.
    """
    model, policy = GraphModel(seed), Policy(seed)
    for item, name in ((model, MODEL), (policy, POLICY)):
        path = folder / name
        try:
            item.load(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ModelError(
                f"cannot read {path}: {error.strerror}; reinstall the package"
            ) from None
    return model, policy
