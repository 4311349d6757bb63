"""Performs the first two stages: reads a network, and finds what there is to tune in it."""

from __future__ import annotations

from tilewright.core.files import Json
from tilewright.networks.accelerator import EpilogueMode
from tilewright.reports.number_format import percent, plural, whole
from tilewright.targets.base import Target
from tilewright.tasks import codecs
from tilewright.tasks.cached_task import Key, Made, Record, stage
from tilewright.tuning import network
from tilewright.tuning.network import Extracted, InputShapes, Model

NO_TARGET = ""


def _model_key(source: str, input_shapes: InputShapes) -> Key:
    """It changes with the content of the file."""
    shapes = {name: list(shape) for name, shape in input_shapes.items()}
    inputs: dict[str, Json] = {
        "source": source, "content": network.source_digest(source), "shapes": shapes,
    }  # fmt: skip
    return Key("import_model", 1, NO_TARGET, inputs)


def _told_model(record: Record[Model]) -> str:
    return f"{record.value.name}, content {record.value.digest[:12]}"


@stage("import {source}", _model_key, codecs.MODEL, _told_model)
def import_model(source: str, input_shapes: InputShapes) -> Made[Model]:
    """Read a built-in network or a file and check it."""
    return Made(network.import_model(source, input_shapes), {})


def _extracted_key(
    model: Record[Model], target: Target, epilogue: EpilogueMode, max_waste: float,
    input_shapes: InputShapes, calibration: str = "",
) -> Key:  # fmt: skip
    inputs: dict[str, Json] = {"model": model.key, "epilogue": epilogue, "max_waste": max_waste}
    inputs["calibration"] = network.calibration_digest(calibration)
    inputs["weights"] = network.weights_digest(model.value.source)
    return Key("extract_subgraphs", 4, target.fingerprint, inputs)


def _told_extracted(record: Record[Extracted]) -> str:
    """`12 workloads, 99.9 % of the network's 1,814,073,344 multiply-accumulates`."""
    found = record.value
    share = found.macs["offloaded"] / max(found.macs["total"], 1)
    count = len(found.subgraphs)
    return (
        f"{count} {plural(count, 'workload')}, {percent(share)} of the network's "
        f"{whole(found.macs['total'])} multiply-accumulates"
    )


@stage("subgraphs of {model.value.name}", _extracted_key, codecs.EXTRACTED, _told_extracted)
def extract_subgraphs(
    model: Record[Model], target: Target, epilogue: EpilogueMode, max_waste: float,
    input_shapes: InputShapes, calibration: str = "",
) -> Made[Extracted]:  # fmt: skip
    """The workloads of the network that the target gets, with their multiplicity."""
    return Made(
        network.extract_subgraphs(
            model.value, target, epilogue, max_waste, input_shapes, calibration
        ),
        {},
    )
