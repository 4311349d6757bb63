"""Measures how far the int8 layers of quantised models are from onnxruntime's results.

    python -m benchmarks.quantisation.layer_errors MODEL… [--samples FILE] [--json FILE]

Each layer is computed in plain integer arithmetic, as all simulators and boards compute it. It is
computed once on onnxruntime's inputs, which shows the error of the layer alone, and once on the
results of all previous layers, which shows the accumulated error. The samples are read from the NPZ
file, or drawn at random: int8 and uint8 inputs over their whole range, float inputs from a standard
normal distribution. Real samples are more meaningful.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.quantisation.integer_graphs import in_memory, run
from benchmarks.results import markdown_table
from tilewright.networks.integer.calibrated import calibrate_first_passes
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.integer.reference import layer_reference
from tilewright.networks.model_runner import run_feeds
from tilewright.networks.quantisation import (
    as_it_is,
    model_with_weights,
    samples_for,
    seeded_samples,
)
from tilewright.networks.quantisation.quantise import calibration_inputs
from tilewright.targets.capabilities import Blocks
from tilewright.targets.layer import ChannelSlice, channel_axis, to_int8

Array = NDArray[Any]
Values = Mapping[str, Array]


@dataclass
class LayerSteps:
    """Differences of a layer's int8 values from those of onnxruntime.

    Holds the largest difference in quantisation steps and the fraction of values that differ, both
    for the layer alone and for the layer after all previous layers.
    """

    layer: str
    passes: int
    largest: int = 0
    differ: float = 0.0
    largest_after_all: int = 0
    differ_after_all: float = 0.0


def layer_steps(
    model: onnx.ModelProto, graph: IntegerGraph, feeds: Sequence[Values]
) -> list[LayerSteps]:
    """Return one row per layer whose output is written by a QuantizeLinear of the model.

    `feeds` holds arrays by name, in the shapes of the inputs.
    """
    written = {
        node.name: node.output[0] for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.name in graph.values
    }  # fmt: skip
    rows: dict[str, LayerSteps] = {}
    island = in_memory(graph)
    for feed, theirs in zip(feeds, run_feeds(model, list(written.values()), feeds), strict=True):
        ours = run(graph, feed, island)
        known = {name: to_int8(theirs[tensor], None) for name, tensor in written.items()}
        alone = {**ours, **known}
        for layer in graph.layers:
            parts = sorted((e for e in graph.slices if e.whole == layer.data), key=_first_channel)
            if parts:
                axis = channel_axis(graph.values[layer.data].shape)
                alone[layer.data] = np.concatenate([alone[e.part] for e in parts], axis=axis)
            made = layer_reference(layer, alone, graph.blocks.in_channels)
            if layer.output not in known:
                alone[layer.output] = made.reshape(graph.values[layer.output].shape)
                continue
            passes = sum(item.names == layer.names for item in graph.layers)
            row = rows.setdefault(layer.output, LayerSteps(layer.name, passes))
            wanted = known[layer.output].astype(int).ravel()
            off = np.abs(made.astype(int).ravel() - wanted)
            after = np.abs(ours[layer.output].astype(int).ravel() - wanted)
            row.largest = max(row.largest, int(off.max()))
            row.largest_after_all = max(row.largest_after_all, int(after.max()))
            row.differ += float((off > 0).mean()) / len(feeds)
            row.differ_after_all += float((after > 0).mean()) / len(feeds)
    return list(rows.values())


def _first_channel(part: ChannelSlice) -> int:
    return part.first


def measure_errors(source: str, samples: Path | None, count: int) -> list[LayerSteps]:
    """Return the errors of the layers of a model on `count` samples.

    The samples also calibrate the first passes of layers that are computed in two passes.
    """
    model = model_with_weights(source)
    made = as_it_is(model).model
    graph = integer_graph(made, Blocks(1, 16, 16))
    inputs = calibration_inputs(model)
    drawn = seeded_samples(inputs, count) if samples is None else samples_for(model, samples)
    feeds = drawn.feeds[:count]
    return layer_steps(made, calibrate_first_passes(graph, made, feeds), feeds)


def main() -> None:
    """Measure the given models and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    result = {}
    for source in asked.models:
        rows = measure_errors(source, asked.samples, asked.count)
        result[source] = [asdict(row) for row in rows]
        print(f"\n{source}, {asked.count} samples\n")
        cells = [
            (
                row.layer, row.passes, row.largest, f"{row.differ:.2%}", row.largest_after_all,
                f"{row.differ_after_all:.2%}",
            )
            for row in rows
        ]  # fmt: skip
        head = ("layer", "passes", "alone: largest", "differ", "after all: largest", "differ")
        print(markdown_table(head, "lr", cells))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
