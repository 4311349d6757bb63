"""Fuse ReLUs and clips into the layer before them, or turn them into separate layers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from tilewright.networks.fusion.candidates import FusionChoice, unused_name, with_steps
from tilewright.networks.integer.graph import IntegerGraph, Step
from tilewright.networks.integer.products import identity_workload
from tilewright.networks.requantisation import INT8
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.layer import Layer, Value

_CLIPS = ("min", "max")
_WHOLE = (EpilogueOp("min", INT8[1]), EpilogueOp("max", INT8[0]))


def find_choices(graph: IntegerGraph) -> list[FusionChoice]:
    """Return the activations that can be fused with the layer that computes their input.

    An activation can be fused if the layer's epilogue clips the result to less than the int8 range.

    Args:
        graph: the network.
    """
    return [
        FusionChoice("activation", layer.name, (layer.output,))
        for layer in graph.layers
        if is_cut_further(layer)
    ]


def is_cut_further(layer: Layer) -> bool:
    """Return whether a layer clips its results to less than the int8 range.

    The result is False for max-pools.
    """
    return layer.workload.operator != "max_pool" and bool(set(_clips(layer)) - set(_WHOLE))


def separate_clips(graph: IntegerGraph, outputs: Collection[str]) -> IntegerGraph:
    """Turn the clips at the end of some layers into separate layers.

    The results of the network do not change: clipping a value first to int8 and then to a smaller
    range equals clipping it once to the smaller range.

    Args:
        graph: the network.
        outputs: names of the output tensors of these layers.

    Returns:
        The network with the separate layers.
    """
    steps: list[Step] = []
    new: list[Value] = []
    for step in graph.steps:
        if not isinstance(step, Layer) or step.output not in outputs:
            steps.append(step)
            continue
        clips, value = _clips(step), graph.values[step.output]
        before = replace(value, name=unused_name(graph, f"{step.output}.before_activation"))
        remaining_ops = step.workload.epilogue[: -len(clips)]
        workload = identity_workload(value.shape, graph.blocks)
        steps += [
            replace(
                step, output=before.name,
                workload=step.workload.with_steps((*remaining_ops, *_WHOLE)),
            ),
            Layer(
                f"{step.name}.activation", step.names[-1:], "Clip",
                workload.with_steps(clips), before.name, step.output,
                # A depthwise 1×1 convolution with the weights 1 passes the tensor through.
                weight=np.ones((workload.out_channels, 1, 1, 1), np.int8),
            ),
        ]  # fmt: skip
        new.append(before)
    return with_steps(graph, steps, new)


def _clips(layer: Layer) -> tuple[EpilogueOp, ...]:
    """Return the `min` and `max` operations at the end of a layer's epilogue."""
    steps = layer.workload.epilogue
    count = next((k for k, op in enumerate(reversed(steps)) if op.kind not in _CLIPS), len(steps))
    return steps[len(steps) - count :]
