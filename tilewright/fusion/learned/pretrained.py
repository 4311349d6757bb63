"""Loads the models that ship with the program; each run trains them further.

They were trained on graphs of six networks of the zoo (`python -m benchmarks.fusion.training`).
"""

from __future__ import annotations

from pathlib import Path

from tilewright.core.files import digest
from tilewright.fusion.learned.graph_model import GraphModel, ModelError
from tilewright.fusion.learned.policy import Policy

MODEL, POLICY = "graphs.ubj", "policy.ubj"
FOLDER = Path(__file__).parent / "trained"


def shipped_digest(folder: Path = FOLDER) -> str:
    """What tells the models of a folder from all others. Raises `ModelError` where they cannot be
    read."""
    held = []
    for name in (MODEL, POLICY):
        path = folder / name
        try:
            held.append(digest(path.read_bytes()))
        except FileNotFoundError:
            held.append("")
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}") from None
    return digest(" ".join(held).encode())


def shipped_models(seed: int = 0, folder: Path = FOLDER) -> tuple[GraphModel, Policy]:
    """The model of labelled graphs and the policy, untrained where the folder has none. Raises
    `ModelError` where what it has is damaged."""
    model, policy = GraphModel(seed), Policy(seed)
    for each, name in ((model, MODEL), (policy, POLICY)):
        path = folder / name
        try:
            each.load(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}") from None
    return model, policy
