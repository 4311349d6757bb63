"""Performs the first two stages: reads a network, and finds what there is to tune in it."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.core.files import Json, as_text
from tilewright.networks.epilogues import EpilogueMode
from tilewright.reports.number_format import percent, plural, whole
from tilewright.targets.base import Target
from tilewright.tasks.artifact_store import CacheUse, Manifest
from tilewright.tasks.cached_task import Key, Made, Result, reuse_or_do, stage
from tilewright.tuning import network
from tilewright.tuning.network import Extracted, InputShapes, Model

NO_TARGET = ""


@stage("import {source}")
def import_model(cache: CacheUse, source: str, input_shapes: InputShapes) -> Result:
    """Read a built-in network or a file and check it; the key changes with its content."""
    content = network.source_digest(source)

    def work() -> Made:
        model = network.import_model(source, input_shapes)
        return {"source": source, "name": model.name, "digest": content}, {}

    shapes = {name: list(shape) for name, shape in input_shapes.items()}
    inputs: dict[str, Json] = {"source": source, "content": content, "shapes": shapes}
    return reuse_or_do(cache, Key("import_model", 1, NO_TARGET, inputs), work, _told_model)


@stage("subgraphs of {model.values[name]}")
def extract_subgraphs(
    cache: CacheUse, model: Manifest, target: Target, epilogue: EpilogueMode, max_waste: float,
    input_shapes: InputShapes, calibration: str = "",
) -> Result:  # fmt: skip
    """The workloads of the network that the target gets, with their multiplicity."""

    def work() -> Made:
        found = network.extract_subgraphs(
            read_model(model), target, epilogue, max_waste, input_shapes, calibration
        )
        return found.to_json(), {}

    inputs: dict[str, Json] = {"model": model.key, "epilogue": epilogue, "max_waste": max_waste}
    inputs["calibration"] = network.calibration_digest(calibration)
    inputs["weights"] = network.weights_digest(as_text(model.values["source"]))
    return reuse_or_do(
        cache, Key("extract_subgraphs", 4, target.fingerprint, inputs), work, _told_found
    )


def _told_model(values: Mapping[str, Json]) -> str:
    return f"{as_text(values['name'])}, content {as_text(values['digest'])[:12]}"


def _told_found(values: Mapping[str, Json]) -> str:
    """`12 workloads, 99.9 % of the network's 1,814,073,344 multiply-accumulates`."""
    found = Extracted.from_json(values)
    share = found.macs["offloaded"] / max(found.macs["total"], 1)
    count = len(found.subgraphs)
    return (
        f"{count} {plural(count, 'workload')}, {percent(share)} of the network's "
        f"{whole(found.macs['total'])} multiply-accumulates"
    )


def read_model(manifest: Manifest) -> Model:
    """What `import_model` found."""
    return Model(*(as_text(manifest.values[name]) for name in ("source", "name", "digest")))


def read_extracted(manifest: Manifest) -> Extracted:
    """What `extract_subgraphs` found."""
    return Extracted.from_json(manifest.values)
