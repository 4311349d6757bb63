"""Fuses relus and clips with the layer before them, or makes them separate layers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from tilewright.networks.fusion.candidates import FusionChoice, unused, with_steps
from tilewright.networks.integer.graph import IntegerGraph, Step
from tilewright.networks.integer.products import passing
from tilewright.networks.requantisation import INT8
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.layer import Layer, Value

_CLIPS = ("min", "max")
_WHOLE = (EpilogueOp("min", INT8[1]), EpilogueOp("max", INT8[0]))


def offered(graph: IntegerGraph) -> list[FusionChoice]:
    """The layers whose int8 results are cut further than to eight bits."""
    return [
        FusionChoice("activation", layer.name, (layer.output,))
        for layer in graph.layers
        if is_cut_further(layer)
    ]


def is_cut_further(layer: Layer) -> bool:
    """Whether what a layer multiplies is cut further than to eight bits."""
    return layer.workload.operator != "max_pool" and bool(set(_clips(layer)) - set(_WHOLE))


def apart(graph: IntegerGraph, outputs: Collection[str]) -> IntegerGraph:
    """With the clips of the layers that write these tensors as layers of their own. A number that
    has been cut to eight bits and is cut further is what it is when it is cut once."""
    steps: list[Step] = []
    new: list[Value] = []
    for step in graph.steps:
        if not isinstance(step, Layer) or step.output not in outputs:
            steps.append(step)
            continue
        clips, value = _clips(step), graph.values[step.output]
        before = replace(value, name=unused(graph, f"{step.output}.before_activation"))
        own = step.workload.epilogue[: -len(clips)]
        workload = passing(value.shape, graph.blocks)
        steps += [
            replace(
                step, output=before.name,
                workload=step.workload.with_steps((*own, *_WHOLE)),
            ),
            Layer(
                f"{step.name}.activation", step.names[-1:], "Clip",
                workload.with_steps(clips), before.name, step.output,
                weight=np.ones((workload.out_channels, 1, 1, 1), np.int8),
            ),
        ]  # fmt: skip
        new.append(before)
    return with_steps(graph, steps, new)


def _clips(layer: Layer) -> tuple[EpilogueOp, ...]:
    """The steps that cut its results, at the end of its epilogue."""
    steps = layer.workload.epilogue
    count = next((k for k, op in enumerate(reversed(steps)) if op.kind not in _CLIPS), len(steps))
    return steps[len(steps) - count :]
