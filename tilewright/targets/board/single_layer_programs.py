"""Makes a batch's programs loadable: a network of one layer each, with random numbers and answers.

What rows have in common, weights above all, travels once: files are named by their digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.files import digest
from tilewright.targets.artifact_types import LayerGraph
from tilewright.targets.base import Lowered
from tilewright.targets.board import EXPECTED, INPUT
from tilewright.targets.layer import Layer, LayerShortcut, Scale, Value
from tilewright.targets.patterns.shortcut import shortcut_tensors
from tilewright.targets.vta.board.layer_program import LayerProgram, packed_constants
from tilewright.targets.vta.board.layouts import data_packing, output_packing
from tilewright.targets.vta.board.network_program import linked
from tilewright.targets.vta.board.program_image import image_files
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.tensor_packing import Tensors, random_tensors, reference
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import INSNS, UOPS
from tilewright.targets.workload import Workload


@dataclass(frozen=True)
class Loadable:
    """Files by name of each row, as digests, None for one that no board could load (`reasons`);
    `blobs` are their bytes."""

    rows: list[dict[str, str] | None] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    blobs: dict[str, NDArray[np.uint8]] = field(default_factory=dict)

    def add(self, files: Mapping[str, bytes]) -> None:
        """A row."""
        named = {name: digest(data) for name, data in files.items()}
        for name, data in files.items():
            self.blobs.setdefault(named[name], np.frombuffer(data, np.uint8))
        self.rows.append(named)
        self.reasons.append("")

    def add_none(self, reason: str) -> None:
        """A row without a program."""
        self.rows.append(None)
        self.reasons.append(reason)


def loadable(lowering: Lowering, lowered: Lowered, seed: int = 0) -> Loadable:
    """The programs of a batch, all of which compiled, on random tensors of that seed."""
    workload, m = lowering.workload, lowering.machine
    tensors = random_tensors(workload, m, seed)
    expected = reference(workload, m, tensors).astype(np.int8).tobytes()
    layer, graph = _layer(workload, tensors), _graph(workload)
    constants = packed_constants(layer, lowering)
    found = Loadable()
    for row in range(len(lowered)):
        program = _program(lowering, layer, graph, constants, lowered, row)
        try:
            made = linked([program], graph, lowering.spec)
            files = image_files(made.board)
        except WorkloadError as error:
            found.add_none(str(error))
            continue
        order = [value.name for value in made.board.inputs]
        files[INPUT] = b"".join(tensors[name].astype(np.int8).tobytes() for name in order)
        files[EXPECTED] = expected
        found.add(files)
    return found


def check_loadable(workload: Workload, spec: VtaSpec) -> None:
    """Raises `WorkloadError` for what no artifact can hold."""
    if spec.machine.inp_bits != 8 or spec.machine.wgt_bits != 8 or spec.machine.acc_bits != 32:
        raise WorkloadError(
            f"{spec.name}: boards run int8 with int32 sums, this machine has other types"
        )
    if any(op.kind == "add" for op in workload.epilogue):
        raise WorkloadError(
            f"{workload}: a tensor of int32 that is added lies in no artifact; write 'residual N' "
            "in the epilogue instead of 'add'"
        )


def _program(
    lowering: Lowering,
    layer: Layer,
    graph: LayerGraph,
    constants: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    lowered: Lowered,
    row: int,
) -> LayerProgram:
    geo, m = lowering.geometry, lowering.machine
    uops = lowered.programs[UOPS][row].astype(f"<u{m.uop_bytes}").view(np.uint8)
    weights, bias = constants
    return LayerProgram(
        layer, lowering,
        data_packing(layer, graph.values[layer.data].shape, geo, m),
        output_packing(layer, graph.values[layer.output].shape, geo, m),
        lowering.kind, tuple(map(int, lowered.configs[row])), lowered.programs[INSNS][row], uops,
        weights, bias,
    )  # fmt: skip


def _layer(workload: Workload, tensors: Tensors) -> Layer:
    weight, bias, shifts = (tensors.get(name) for name in ("weight", "bias", "shr_channel"))
    return Layer(
        "layer", ("layer",), workload.operator, workload, "data", "output",
        residual="residual" if "residual" in tensors else None,
        weight=None if weight is None else weight.astype(np.int8),
        bias=None if bias is None else bias.astype(np.int32),
        shifts=None if shifts is None else shifts.astype(np.int32),
        shortcut=_shortcut(shortcut_tensors(tensors)),
    )  # fmt: skip


def _shortcut(tensors: Tensors) -> LayerShortcut | None:
    if not tensors:
        return None
    bias, shifts = tensors.get("bias"), tensors.get("shr_channel")
    return LayerShortcut(
        "shortcut_data", tensors["weight"].astype(np.int8),
        None if bias is None else bias.astype(np.int32),
        None if shifts is None else shifts.astype(np.int32),
    )  # fmt: skip


def _graph(workload: Workload) -> LayerGraph:
    w = workload
    given: tuple[int, ...] = (w.batch, w.in_channels, w.height, w.width)
    made: tuple[int, ...] = (w.batch, w.out_channels, w.out_height, w.out_width)
    if w.operator == "dense":
        given, made = given[:2], made[:2]
    added = w.batch, w.out_channels, w.results_height, w.results_width
    residual = added if w.average is not None else made
    shapes = {"data": given, "output": made, "residual": residual}
    if w.shortcut is not None:
        image = w.shortcut.height, w.shortcut.width
        shapes["shortcut_data"] = w.batch, w.shortcut.in_channels, *image
    values = {name: Value(name, shape, scale=Scale(1.0)) for name, shape in shapes.items()}
    return LayerGraph((), values, ("output",), {}, {})
