"""Builds a small artifact for tests, and copies of it with a changed manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.board.graphs import Example, small_cnn
from tilewright.core.files import Json
from tilewright.networks.artifact import build
from tilewright.networks.artifact.manifest import serialise_manifest
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.targets import make_target
from tilewright.targets.capabilities import Blocks
from tilewright.targets.layer import Scale, Value

SCALE = Scale.power_of_two(-5)


def in_integers(example: Example) -> IntegerGraph:
    """Return the example as an integer network with a float input and a float output."""
    graph = example.graph
    image, logits = (
        Value("image", (1, 1, 12, 12), "float32"),
        Value("logits", (10,), "float32", SCALE),
    )
    values = {**graph.values, "image": image}
    return IntegerGraph(
        name="small", inputs=(image,), outputs=(logits,), values=values,
        steps=graph.layers, quantised={"x": "image"}, results={"logits": "y"},
        blocks=Blocks(1, 16, 16), macs=sum(layer.macs for layer in graph.layers) + 1000,
    )  # fmt: skip


def build_small(out: Path, seed: int = 3, notes: dict[str, Json] | None = None) -> None:
    """Build the small artifact for a VTA, with random schedules."""
    example = small_cnn()
    build(in_integers(example), example.random_picks(seed), make_target("vta-pynq"), "vta", out,
          notes=notes)  # fmt: skip


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and update its digest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("sha256")
    change(manifest)
    (folder / "manifest.json").write_bytes(serialise_manifest(manifest))
