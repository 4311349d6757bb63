"""Builds the artifact of an int8 network for an accelerator, given a schedule for each layer."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.core.files import Json, as_list, as_object
from tilewright.networks.artifact.accuracy import CHECK_FILE, Check, accuracy, refuse_inaccurate
from tilewright.networks.artifact.load import CPU_LIBRARY, Artifact
from tilewright.networks.artifact.manifest import in_the_way, specification, write_folder
from tilewright.networks.artifact.regions import ArtifactRegions, write_regions
from tilewright.networks.errors import ArtifactError
from tilewright.networks.offloading.cpu_costs import SECONDS, SLOWDOWN
from tilewright.networks.tolerances import OF_FLOAT
from tilewright.targets.artifact_types import Built, HostStep, LayerGraph, Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Builds, capability, traits_of
from tilewright.targets.layer import Layer, Value
from tilewright.targets.workload import Workload, canonical

if TYPE_CHECKING:
    from tilewright.networks.integer.graph import CpuIsland, IntegerGraph
    from tilewright.networks.partition.region_models import LastRegions


def build(
    graph: IntegerGraph, schedules: Sequence[Pick], target: Target, target_kind: str, out: Path, *,
    notes: Mapping[str, Json] | None = None, bare: bool = False, check: Check | None = None,
    tolerance: float = OF_FLOAT, cpu_seconds: Mapping[str, float] | None = None,
    last: LastRegions | None = None,
) -> Mapping[str, Json]:  # fmt: skip
    """Build an int8 network for an accelerator, and write the artifact.

    If `check` is given, the built network first runs on its samples. Nothing is written if the
    outputs are too inaccurate.

    Args:
        graph: the quantised network.
        schedules: one schedule per layer of `graph.layers`.
        target: the target.
        target_kind: type of the target, for example "vta", from which `load` rebuilds the target.
        out: folder of the artifact.
        notes: additional entries of the manifest, such as how the model was quantised.
        bare: require that the accelerator runs the network alone, without work for the CPU.
        check: samples with the outputs of the source model.
        tolerance: largest accepted relative error of the outputs.
        cpu_seconds: estimated seconds of operators on the CPU beside the accelerator, by operator
            name.
        last: regions (groups of operators) that onnxruntime runs after the graph.

    Returns:
        The manifest of the artifact.

    Raises:
        ArtifactError: the target cannot build artifacts, the folder holds other files, or the CPU
            would have work although `bare` is set.
        InaccurateError: the outputs differ from those of `check` by more than `tolerance`.
        WorkloadError: no board could load the program.
    """
    builds = check_possible(graph, target, out, bare=bare)
    made = builds.build(layer_graph(graph), schedules)
    if bare and made.why_not_bare:
        raise ArtifactError(f"--bare: {made.why_not_bare}; leave out --bare")
    files = dict(made.files)
    if graph.islands:
        files[CPU_LIBRARY] = _library(graph)
    manifest = {
        **_manifest(graph, made, target, target_kind, notes or {}, cpu_seconds),
        "regions": write_regions(graph.regions, () if last is None else last.regions, files),
    }
    if last is not None:
        manifest |= _whole_network(last)
    if check is not None:
        layers = [as_object(row) for row in as_list(manifest["layers"])]
        library = files.get(CPU_LIBRARY)
        regions = ArtifactRegions(manifest["regions"], files)
        artifact = Artifact(manifest, builds.open(files, layers), library, regions=regions)
        result = accuracy(check, artifact.infer_layers, tolerance, artifact.zero_points)
        refuse_inaccurate(result, graph.name)
        files[CHECK_FILE] = check.to_bytes()
        manifest["accuracy"] = result.to_json()
    return write_folder(out, files, manifest)


def _whole_network(last: LastRegions) -> dict[str, Json]:
    """Return the manifest entries that describe the inputs and outputs of the whole network.

    If onnxruntime runs the end of the network, the whole network has other outputs than the part
    that is compiled.

    Args:
        last: regions (groups of operators) that onnxruntime runs after the compiled part.

    Returns:
        The entries `network_inputs` and `network_outputs`: name, shape and element type of each
        tensor.
    """
    infos = {"inputs": last.inputs, "outputs": list(last.whole.graph.output)}
    network: dict[str, Json] = {}
    for key, values in infos.items():
        network[f"network_{key}"] = [
            {
                "name": info.name,
                "shape": list(last.shape_of(info)),
                "dtype": last.dtype_of(info),
                "scale": None,
                "zero_point": None,
            }
            for info in values
        ]
    return network


def check_possible(graph: IntegerGraph, target: Target, out: Path, *, bare: bool = False) -> Builds:
    """Check that an artifact can be built, before time is spent on tuning its schedules.

    Args:
        graph: the quantised network.
        target: the target.
        out: folder of the artifact.
        bare: require that the accelerator runs the network alone, without work for the CPU.

    Returns:
        The target, typed as a target that builds programs.

    Raises:
        ArtifactError: the target cannot build artifacts, the folder holds other files, no layer
            runs on the target, or the CPU would have work although `bare` is set.
    """
    problem = in_the_way(out)
    if problem:
        raise ArtifactError(f"cannot write to {out}: {problem}; choose another folder with --out")
    builds = capability(target, Builds)
    if builds is None:
        raise ArtifactError(
            f"programs of {target.name} cannot be executed here, so nothing can be built for "
            "it; choose a VTA or a Gemmini"
        )
    if not graph.layers:
        raise ArtifactError(
            f"no layer of {graph.name} can run on {target.name}, so there is nothing to "
            "build; 'tilewright inspect' shows the reason for each operator"
        )
    if bare and graph.islands:
        raise ArtifactError(
            f"--bare: the CPU would have to compute {_list_operators(graph.islands)}; leave out "
            "--bare, or cut the model there"
        )
    return builds


def canonical_workloads(graph: IntegerGraph) -> list[Workload]:
    """Return the workload that is tuned for each layer, in the order of `graph.layers`.

    Schedules do not depend on the constants in an epilogue (its immediates). The constants are
    therefore replaced by standard values, so that layers that differ only in these constants share
    a schedule.
    """
    return [canonical(layer.workload) for layer in graph.layers]


def layer_graph(graph: IntegerGraph) -> LayerGraph:
    """Return the graph of layers that a target builds into a program.

    The host passes a tensor to the target as floats if it would otherwise have to quantise a float
    input of the network. The target passes a tensor to the host as floats if the host would only
    dequantise it to a float output. In both cases, the conversion is part of packing or unpacking
    the tensor.

    Args:
        graph: the quantised network.

    Returns:
        The graph with the layers and the steps of the host.
    """
    steps: list[Layer | HostStep] = []
    by_islands: set[str] = set()
    for step in graph.steps:
        if isinstance(step, Layer):
            steps.append(step)
        else:
            steps.append(HostStep(_list_operators([step]), step.inputs, step.outputs))
            by_islands.update(step.inputs)
    inputs = {value.name: value for value in graph.inputs}
    loaded = {
        name: inputs[source] for name, source in graph.quantised.items() if name not in by_islands
    }
    outputs = {value.name: value for value in graph.outputs}
    results = list(graph.results.values())
    stored = {
        value: outputs[name]
        for name, value in graph.results.items()
        if results.count(value) == 1 and value not in by_islands and _is_int8(graph, value)
    }
    by_host = tuple(
        f"{name} from {value}"
        for name, value in graph.results.items()
        if value not in stored and _is_int8(graph, value) and name != value
    )
    return LayerGraph(
        tuple(steps), graph.values, tuple(dict.fromkeys(results)), loaded, stored, by_host,
        graph.slices, graph.inputs, graph.outputs,
    )  # fmt: skip


def _is_int8(graph: IntegerGraph, name: str) -> bool:
    return graph.values[name].dtype == "int8"


def _list_operators(islands: Sequence[CpuIsland]) -> str:
    """Return a text that lists the operator types that run on the CPU, for an error message.

    Each type is followed by the name of its first operator and the number of further operators.

    Args:
        islands: groups of operators that the CPU runs between layers.
    """
    kinds: dict[str, list[str]] = {}
    for island in islands:
        if not island.nodes:  # it converts a tensor between two layers' layouts
            kinds.setdefault("a change of layout", []).extend(island.outputs)
        for node, kind in island.nodes:
            kinds.setdefault(kind or "?", []).append(node)
    return ", ".join(
        f"{kind} ({nodes[0]}{f' and {len(nodes) - 1} more' if len(nodes) > 1 else ''})"
        for kind, nodes in kinds.items()
    )


def _library(graph: IntegerGraph) -> bytes:
    """Compile the operators of a quantised network that run on the CPU.

    Returns:
        The content of the shared library. Compiling imports TVM.
    """
    from tilewright.networks.integer.cpu_islands import write

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(CPU_LIBRARY).name
        write(graph, path)
        return path.read_bytes()


def _manifest(
    graph: IntegerGraph, made: Built, target: Target, kind: str, notes: Mapping[str, Json],
    cpu_seconds: Mapping[str, float] | None,
) -> dict[str, Json]:  # fmt: skip
    rows: list[dict[str, Json]] = []
    for layer, row in zip(graph.layers, made.layers, strict=True):
        rows.append(
            {
                "name": layer.name,
                "names": list(layer.names),
                "operator": layer.operator,
                "macs": layer.macs,
                "data": layer.data,
                "output": layer.output,
                "residual": layer.residual,
                "weight_from": layer.weight_from,
                "shortcut": None if layer.shortcut is None else layer.shortcut.data,
                **row,
            }
        )
    alone = sum(int(str(row["cycles"])) for row in rows)
    host_slowdown = traits_of(target).host_slowdown
    slowdown = SLOWDOWN if host_slowdown is None else host_slowdown
    return {
        "network": graph.name,
        "target": target.name,
        "inputs": [_tensor(value) for value in graph.inputs],
        "outputs": [_tensor(value) for value in graph.outputs],
        "cycles": {"sum_of_layers": alone, "stream": made.stream_cycles},
        "macs": {"total": graph.macs, "accelerator": sum(layer.macs for layer in graph.layers)},
        "dram_bytes": made.bytes,
        "layers": rows,
        "cpu": [
            {
                "name": island.name, "inputs": list(island.inputs),
                "outputs": list(island.outputs),
                "operators": [{"name": node, "operator": kind} for node, kind in island.nodes],
                "estimated_seconds": _island_seconds(graph, island, cpu_seconds, slowdown),
            }
            for island in graph.islands
        ],
        "steps": [
            {
                "kind": "segment", "number": number,
                "loads": list(made.ports[number][0]), "stores": list(made.ports[number][1]),
            }
            if step == "segment" else {"kind": "cpu", "number": number}
            for step, number in made.order
        ],
        "host_slowdown": slowdown,
        "values": {name: _value(value) for name, value in graph.values.items()},
        "quantised": dict(graph.quantised),
        "results": dict(graph.results),
        "memory": made.memory,
        "specification": specification(target, kind),
        "bare": not made.why_not_bare,
        "why_not_bare": made.why_not_bare,
        "runtime_sha256": made.runtime_sha256,
        **notes,
    }  # fmt: skip


def _island_seconds(
    graph: IntegerGraph, island: CpuIsland, cpu_seconds: Mapping[str, float] | None,
    slowdown: float,
) -> float | None:  # fmt: skip
    """Return the estimated seconds of an island on the CPU; None if there is no estimate.

    Args:
        graph: the quantised network.
        island: operators that the CPU runs between layers. An island without operators changes a
            layout.
        cpu_seconds: estimated seconds of operators on the CPU beside the accelerator, by operator
            name.
        slowdown: factor by which that CPU is slower than the CPU on which
            `networks.offloading.cpu_costs` was measured.
    """
    if not island.nodes:  # a change of layout
        elements = sum(prod(graph.values[name].shape) for name in island.outputs)
        return slowdown * SECONDS["move"] * elements
    if cpu_seconds is None:
        return None
    return sum(cpu_seconds.get(name, 0.0) for name in dict(island.nodes))


def _tensor(value: Value) -> dict[str, Json]:
    return {"name": value.name, **_value(value)}


def _value(value: Value) -> dict[str, Json]:
    step, zero = value.scale or (None, None)
    return {"shape": list(value.shape), "dtype": value.dtype, "scale": step, "zero_point": zero}


__all__ = ["build", "canonical_workloads", "check_possible", "in_the_way", "layer_graph"]
