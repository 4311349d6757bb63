"""Reference implementation of integer graphs: plain integer arithmetic on the CPU, layer by layer.

All other implementations have to give the same results in every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.errors import InputError
from tilewright.networks.integer.cpu_islands import compiled_islands
from tilewright.networks.integer.graph import CpuIsland, IntegerGraph
from tilewright.networks.integer.reference import layer_reference
from tilewright.networks.partition.region_session import RegionCalls, RegionSession
from tilewright.networks.relax.cpu_subgraphs import Library
from tilewright.targets.layer import Layer, channel_axis, from_int8, to_int8
from tilewright.targets.tensor_aliasing import lay_out

Array = NDArray[Any]
LayerFunction = Callable[[Layer, Mapping[str, Array]], Array]
RunIsland = Callable[[CpuIsland, list[Array]], list[Array]]


def in_memory(graph: IntegerGraph) -> RunIsland:
    """Compile a graph's regions for this machine, and return a function that runs them.

    The function takes arrays in the shapes of the graph's values.

    Raises:
        ImportFailedError: TVM cannot compile some operators; the message names them.
    """
    if not graph.islands:
        return _runner(None)
    regions = RegionCalls([RegionSession.for_region(region, 1) for region in graph.regions])
    return _runner(Library(compiled_islands(graph), regions))


def from_file(path: Path) -> RunIsland:
    """Load a library of CPU islands from a file, and return a function that runs them.

    `networks.integer.cpu_islands` writes such files. The function takes arrays in the shapes of the
    graph's values. It runs the code in the file, so never load a file that you do not trust.
    """
    return _runner(Library.load(path))


def _runner(library: Library | None) -> RunIsland:
    def run(island: CpuIsland, arrays: list[Array]) -> list[Array]:
        assert library is not None, f"'{island.name}' was not compiled"
        return library(island.name, arrays)

    return run


def run(
    graph: IntegerGraph,
    inputs: Mapping[str, Array],
    island: RunIsland,
    layer: LayerFunction | None = None,
) -> dict[str, Array]:
    """Compute every value of an integer graph.

    Args:
        graph: the graph.
        inputs: inputs of the network by name, in its shapes.
        island: function that runs a CPU island on the arrays that it reads; see `in_memory`.
        layer: function that computes a layer from the values so far; by default the reference,
            `layer_reference`.

    Returns:
        All values by name, including the outputs of the network.

    Raises:
        InputError: the inputs do not fit the network.
    """

    def by_reference(step: Layer, values: Mapping[str, Array]) -> Array:
        return layer_reference(step, values, graph.blocks.in_channels)

    run_layer = layer or by_reference
    values = dict(checked(graph, inputs))
    for name, source in graph.quantised.items():
        value = graph.values[name]
        values[name] = to_int8(values[source], value.scale).reshape(value.shape)
    places = _shared_views(graph)
    values.update(places)
    for step in graph.steps:
        if isinstance(step, CpuIsland):
            results = island(step, [values[name] for name in step.inputs])
            values.update(zip(step.outputs, results, strict=True))
        else:
            made = run_layer(step, values)
            made = made.reshape(graph.values[step.output].shape)
            if step.output in places:
                places[step.output][...] = made
            else:
                values[step.output] = made
    for output in graph.outputs:
        values[output.name] = result(graph, output.name, values)
    return values


def _shared_views(graph: IntegerGraph) -> dict[str, Array]:
    """Return arrays for values that are parts of other values, and for these other values.

    The arrays of the parts are views of the memory of the whole.
    """
    shapes = {name: value.shape for name, value in graph.values.items()}
    result: dict[str, Array] = {}
    for begins in lay_out((slice_.part, slice_.whole, slice_.first) for slice_ in graph.slices):
        axis = channel_axis(shapes[next(iter(begins))])
        widest = list(shapes[next(iter(begins))])
        widest[axis] = max(begin + shapes[name][axis] for name, begin in begins.items())
        memory = np.zeros(widest, np.int8)
        for name, begin in begins.items():
            channels = slice(begin, begin + shapes[name][axis])
            result[name] = memory[(slice(None),) * axis + (channels,)]
    return result


def checked(graph: IntegerGraph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs, after checking their names, shapes and types.

    Raises:
        InputError: a name, a shape or a type differs from the graph's inputs.
    """
    wanted = [value.name for value in graph.inputs]
    if set(wanted) != set(inputs):
        raise InputError(
            f"the network's inputs are {', '.join(wanted)}, not {', '.join(inputs) or 'none'}; "
            "give one array for each"
        )
    for value in graph.inputs:
        array = np.asarray(inputs[value.name])
        if (array.shape, array.dtype.name) != (value.shape, value.dtype):
            raise InputError(
                f"the input '{value.name}' must have type {value.dtype} and shape "
                f"{value.shape}, not {array.dtype} and {array.shape}; convert the array"
            )
    return {name: np.asarray(inputs[name]) for name in wanted}


def result(graph: IntegerGraph, output: str, values: Mapping[str, Array]) -> Array:
    """Return an output in its own shape and type, converted from the value that holds it."""
    info = next(value for value in graph.outputs if value.name == output)
    array = values[graph.results[output]]
    if array.dtype == np.int8 and info.dtype != "int8":
        array = from_int8(
            array, info.scale or graph.values[graph.results[output]].scale, info.dtype
        )
    return array.reshape(info.shape).astype(info.dtype)
