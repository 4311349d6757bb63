"""Converts compiled programs to artifacts with one layer, random inputs and expected outputs.

Files are identified by digests of their content. If several programs share a file, for example the
weights, it is sent to a board only once.
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
from tilewright.targets.vta.board.network_program import link_layers
from tilewright.targets.vta.board.program_image import image_files
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.tensor_packing import Tensors, random_tensors, reference
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import INSNS, UOPS
from tilewright.targets.workload import Workload


@dataclass(frozen=True)
class Loadable:
    """Files of a batch of programs, ready to be sent to a board.

    Attributes:
        rows: one mapping per program, from file name to the digest of the file's content; None if
            boards cannot load the program.
        reasons: reason why each program cannot be loaded; empty if it can.
        blobs: content of the files by digest.
    """

    rows: list[dict[str, str] | None] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    blobs: dict[str, NDArray[np.uint8]] = field(default_factory=dict)

    def add(self, files: Mapping[str, bytes]) -> None:
        """Append a program that consists of the given files.

        Args:
            files: content of the files, by file name.
        """
        named = {name: digest(data) for name, data in files.items()}
        for name, data in files.items():
            self.blobs.setdefault(named[name], np.frombuffer(data, np.uint8))
        self.rows.append(named)
        self.reasons.append("")

    def add_none(self, reason: str) -> None:
        """Append a program that cannot be loaded, with the reason."""
        self.rows.append(None)
        self.reasons.append(reason)


def loadable(lowering: Lowering, lowered: Lowered, seed: int = 0) -> Loadable:
    """Convert the programs of a batch to files that a board can load.

    Args:
        lowering: compiler of the workload, which knows the memory layout of its tensors.
        lowered: the batch; all of its configs have compiled.
        seed: seed of the random tensors on which the programs run.
    """
    workload, m = lowering.workload, lowering.machine
    tensors = random_tensors(workload, m, seed)
    expected = reference(workload, m, tensors).astype(np.int8).tobytes()
    layer, graph = _layer(workload, tensors), _graph(workload)
    constants = packed_constants(layer, lowering)
    files_of_rows = Loadable()
    for row in range(len(lowered)):
        program = _program(lowering, layer, graph, constants, lowered, row)
        try:
            network = link_layers([program], graph, lowering.spec)
            files = image_files(network.board)
        except WorkloadError as error:
            files_of_rows.add_none(str(error))
            continue
        order = [value.name for value in network.board.inputs]
        files[INPUT] = b"".join(tensors[name].astype(np.int8).tobytes() for name in order)
        files[EXPECTED] = expected
        files_of_rows.add(files)
    return files_of_rows


def check_loadable(workload: Workload, spec: VtaSpec) -> None:
    """Check that an artifact can hold a workload.

    Args:
        workload: the workload.
        spec: the machine.

    Raises:
        WorkloadError: the machine does not compute in int8 with int32 accumulators, or the workload
            adds an int32 tensor.
    """
    if spec.machine.inp_bits != 8 or spec.machine.wgt_bits != 8 or spec.machine.acc_bits != 32:
        raise WorkloadError(
            f"{spec.name} cannot run on a board: boards compute in int8 with int32 sums, but "
            "this machine has other types"
        )
    if any(op.kind == "add" for op in workload.epilogue):
        raise WorkloadError(
            f"{workload}: artifacts cannot contain an int32 tensor that is added; write "
            "'residual N' in the epilogue instead of 'add'"
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
    input_shape: tuple[int, ...] = (w.batch, w.in_channels, w.height, w.width)
    output_shape: tuple[int, ...] = (w.batch, w.out_channels, w.out_height, w.out_width)
    if w.operator == "dense":
        input_shape, output_shape = input_shape[:2], output_shape[:2]
    added = w.batch, w.out_channels, w.results_height, w.results_width
    residual = added if w.average is not None else output_shape
    shapes = {"data": input_shape, "output": output_shape, "residual": residual}
    if w.shortcut is not None:
        image = w.shortcut.height, w.shortcut.width
        shapes["shortcut_data"] = w.batch, w.shortcut.in_channels, *image
    values = {name: Value(name, shape, scale=Scale(1.0)) for name, shape in shapes.items()}
    return LayerGraph((), values, ("output",), {}, {})
