"""Holds what is known of an imported model: all that was examined before it meets an accelerator,
and the whole network with its weights.
"""

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


JOINED = "joins the region of"
"""How the reason of an operator begins that could be compiled by itself."""


@dataclass(frozen=True)
class Examined:
    """All that was learned about a model, independent of any accelerator.

    `unsupported` maps an operator that nobody runs to (reason, next step); `regions` are what
    onnxruntime runs; `readers` an operator to those that read
    its results; `shapes` an operator to the shape of its first result. `results` are the operators
    that write what the network gives. Of some kinds of files nobody knows readers and results.
    `region_macs` are the multiply-accumulates of operators in regions, where their shapes are
    known; `notes` what else a user should know, in sentences. `constant_outputs`
    are outputs that depend on no input.
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
        """The operators whose results an operator reads."""
        found: dict[str, list[str]] = {}
        for writer, readers in self.readers.items():
            for reader in readers:
                found.setdefault(reader, []).append(writer)
        return {name: tuple(writers) for name, writers in found.items()}

    @cached_property
    def outside(self) -> Mapping[str, str]:
        """The operators that onnxruntime runs, and why."""
        found: dict[str, str] = {}
        for region in self.regions:
            joined = f"{JOINED} '{region.causes[0].name}'" if region.causes else NOTHING
            found |= dict.fromkeys(region.nodes, joined)
            found |= {cause.name: cause.reason for cause in region.causes}
        return found


Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Whole:
    """A network with its weights: a flat view of the module, whose parameters are `inputs`, and
    who computes it without any of that: arrays by input name in, by output name out.

    The module calls onnxruntime for `regions`. `constants` are single integers that the network
    holds, `halves` the outputs that are float16 in its file and float32 here.
    Inputs of one that `is_undrawable` cannot be drawn.
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
        """As `seeded_inputs`, in the shapes of its own inputs."""
        types = (parameter.ty for parameter in self.flat.module["main"].params)
        kinds = (([int(size) for size in each.shape], str(each.dtype)) for each in types)
        return seeded_inputs(dict(zip(self.inputs, kinds, strict=True)), seed)
