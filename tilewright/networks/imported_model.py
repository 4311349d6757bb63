"""Data types for an imported model: its analysis, and the whole network with its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright.networks.fused_calls import Partitioned
from tilewright.networks.onnx.graph import Absorbed, Operator, Shape
from tilewright.networks.partition.regions import NOTHING, Region
from tilewright.networks.sample_values import seeded_inputs

if TYPE_CHECKING:
    from tilewright.networks.partition.region_models import RegionModel
    from tilewright.networks.relax.bindings import FlatGraph


JOINED = "belongs to the region of"
"""Beginning of the reason that is shown for an operator that could be compiled, but that runs in
onnxruntime because it belongs to the region of a neighbour."""


@dataclass(frozen=True)
class Examined:
    """Analysis of a model, independent of any accelerator.

    Attributes:
        name: name of the model for messages.
        inputs: shape of each input, by input name.
        operators: all operators of the normalised model.
        absorbed: operators that the normalisation merged into others, by name.
        unsupported: operators that could not be converted to ONNX, so that neither TVM nor
            onnxruntime can run them: name to (reason, next step).
        readers: names of the operators that read an operator's results, by operator name.
        shapes: shape of each operator's first result, by operator name.
        found: the operators that can be offloaded, and the multiply-accumulates of each operator.
        results: names of the operators that write outputs of the network.
        region_macs: multiply-accumulates of the operators that onnxruntime runs, by operator name.
            Operators of unknown shape are missing.
        regions: the parts of the network that onnxruntime runs.
        notes: further remarks for the user, as sentences.
        constant_outputs: names of outputs that depend on no input.
    """

    name: str
    inputs: Mapping[str, Shape]
    operators: tuple[Operator, ...]
    absorbed: Mapping[str, Absorbed]
    unsupported: Mapping[str, tuple[str, str]]
    readers: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, Shape]
    found: Partitioned
    results: frozenset[str] = frozenset()
    region_macs: Mapping[str, int] = field(default_factory=dict)
    regions: tuple[Region, ...] = ()
    notes: tuple[str, ...] = ()
    constant_outputs: tuple[str, ...] = ()

    @cached_property
    def writers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the operators whose results an operator reads, by operator name."""
        writers_by_reader: dict[str, list[str]] = {}
        for writer, readers in self.readers.items():
            for reader in readers:
                writers_by_reader.setdefault(reader, []).append(writer)
        return {name: tuple(writers) for name, writers in writers_by_reader.items()}

    @cached_property
    def outside_operators(self) -> Mapping[str, str]:
        """The operators that onnxruntime runs: operator name to reason."""
        reasons: dict[str, str] = {}
        for region in self.regions:
            joined = f"{JOINED} '{region.causes[0].name}'" if region.causes else NOTHING
            reasons |= dict.fromkeys(region.nodes, joined)
            reasons |= {cause.name: cause.reason for cause in region.causes}
        return reasons


Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Whole:
    """A whole network with its weights, ready to be compiled.

    Attributes:
        flat: the Relax module with a list of its bindings.
        inputs: names of the network inputs, in the order of the module's parameters.
        outputs: names of the network outputs.
        reference: runs the source model: arrays by input name to arrays by output name.
        reference_name: name of the reference implementation for messages.
        regions: the regions that the module calls in onnxruntime.
        constants: single integers that the network contains. A check of the compiled network tries
            them as input values.
        halves: names of outputs that are float16 in the model file and float32 here.
        is_undrawable: whether no random inputs can be drawn for this network.
    """

    flat: FlatGraph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reference: Callable[[Mapping[str, Array]], Mapping[str, Array]]
    reference_name: str
    regions: tuple[RegionModel, ...] = ()
    constants: tuple[int, ...] = ()
    halves: tuple[str, ...] = ()
    is_undrawable: bool = False

    def seeded_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Draw random inputs in the shapes and types of the network's inputs.

        Args:
            seed: seed of the random generator.

        Returns:
            Arrays by input name, as `sample_values.seeded_inputs` draws them.
        """
        types = (parameter.ty for parameter in self.flat.module["main"].params)
        specs = (([int(size) for size in ty.shape], str(ty.dtype)) for ty in types)
        return seeded_inputs(dict(zip(self.inputs, specs, strict=True)), seed)
