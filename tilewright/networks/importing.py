"""Imports what is compiled of a network: an operator that TVM does not take joins a region."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import onnx

from tilewright.networks.errors import OperatorImportError, UnsupportedOperatorError, last_line
from tilewright.networks.fused_calls import FusedCall
from tilewright.networks.macs import graph_macs
from tilewright.networks.onnx.files import COMPUTABLE, weights_as_inputs, without_weights
from tilewright.networks.onnx.graph import NormalGraph, data_inputs, static_shape
from tilewright.networks.onnx.normalise import fixed_graph, make_importable
from tilewright.networks.onnx.static_shapes import complete_shapes
from tilewright.networks.onnx.to_qdq import to_qdq
from tilewright.networks.partition.constant_folding import fold_constants
from tilewright.networks.partition.onnxruntime_check import has_branches, opens
from tilewright.networks.partition.region_models import (
    RegionModel,
    collapse,
    region_model,
    without_last,
)
from tilewright.networks.partition.regions import Region, find_regions, whole_region
from tilewright.networks.partition.supported_forms import reasons_not_compiled, supported_forms

if TYPE_CHECKING:
    from tilewright.networks.relax.bindings import FlatGraph

POOLS = frozenset(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
"""Operators that have kernels and multiply nothing."""


@dataclass(frozen=True, eq=False)
class ImportedWhole:
    """The normal form of the compiled part of a network, what the importer makes of it, and the
    models of the regions that it calls. `model` is that part before it was normalised, None where
    it is the whole network; `dynamic` are operators whose results have shapes that TVM does not
    know."""

    normal: NormalGraph
    flat: FlatGraph
    regions: tuple[RegionModel, ...]
    model: onnx.ModelProto | None = None
    dynamic: tuple[str, ...] = ()


def import_whole(
    name: str, model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]],
    refused: Mapping[str, str] = MappingProxyType({}),
) -> ImportedWhole:  # fmt: skip
    """Import a model with its weights, all regions of which are called by compiled code. Raises as
    `import_fixed` and as `normalise`."""
    return import_fixed(name, fixed_graph(to_qdq(model), input_shapes), refused)


def import_fixed(
    name: str, fixed: NormalGraph, refused: Mapping[str, str] = MappingProxyType({})
) -> ImportedWhole:
    """Import a graph with static shapes and its weights, all regions of which are called by
    compiled code. Raises `UnsupportedOperatorError` where nothing is compiled."""
    imported = import_compiled(fixed, refused, keep_last=True)
    if imported.core is None:
        raise UnsupportedOperatorError(
            f"nothing of '{name}' is compiled: {_first_cause(imported.regions)}; build it, then "
            "onnxruntime runs it"
        )
    return imported.core


def fused_calls(normal: NormalGraph) -> tuple[FusedCall, ...]:
    """Return the calls that an accelerator could run of a model in normal form, which stays as it
    is."""
    from tilewright.networks.relax.partition import partition

    imported = import_compiled(weightless_graph(normal), {}, weightless=True)
    return () if imported.core is None else partition(imported.core.flat).found.calls


def weightless_graph(normal: NormalGraph) -> NormalGraph:
    """Return a copy of a graph in which the weights have no data."""
    model, absorbed = without_weights(normal.model), dict(normal.absorbed)
    return replace(normal, model=model, absorbed=absorbed)


def _first_cause(regions: Sequence[Region]) -> str:
    cause = next((cause for region in regions for cause in region.causes), None)
    return "it multiplies nothing" if cause is None else f"'{cause.name}': {cause.reason}"


@dataclass(frozen=True, eq=False)
class Imported:
    """What the importer makes of a model: the compiled part, None if nothing is compiled, the graph
    that was partitioned, and its regions. `refused` says which operators the importer does not
    take, and why."""

    core: ImportedWhole | None
    fixed: NormalGraph
    regions: Sequence[Region]
    refused: Mapping[str, str]

    @property
    def has_layers(self) -> bool:
        """Whether something is compiled that sums products, or pools."""
        if self.core is None:
            return False
        normal = self.core.normal
        pools = any(node.op_type in POOLS for node in normal.graph.node)
        return pools or bool(graph_macs(normal, {node.name for node in normal.graph.node}))

    @property
    def last(self) -> list[Region]:
        """The regions that run behind all compiled code."""
        return [region for region in self.regions if region.last]


def import_compiled(
    graph: NormalGraph, refused: Mapping[str, str], *, weightless: bool = False,
    keep_last: bool = False,
) -> Imported:  # fmt: skip
    """Partition a graph and import what is compiled. An operator that the importer does not take
    joins a region.

    Args:
        graph: the graph with static shapes, as `fixed_graph` makes it; it stays as it is.
        refused: why further operators are not compiled, by name.
        weightless: tensors without data are inputs.
        keep_last: also the regions that run last are called by compiled code.
    """
    known = dict(refused)
    while True:
        fixed = graph.copy()
        complete_shapes(fixed)
        narrowed = reasons_not_compiled(fixed, supported_forms())
        if fold_constants(fixed, narrowed):
            narrowed = reasons_not_compiled(fixed, supported_forms())
        operators = {node.name for node in fixed.graph.node}
        origins = {name: _origin(name, operators) for name in known}
        named = {origin: known[name] for name, origin in origins.items() if origin is not None}
        regions = find_regions(fixed, {**narrowed, **named})
        if sum(len(region.nodes) for region in regions) == len(
            operators
        ) or _has_uncompilable_input(fixed):
            return Imported(None, fixed, [whole_region(fixed, regions)], known)
        try:
            core = _import_core(fixed, regions, weightless, keep_last)
        except OperatorImportError as error:
            failed = {error.operator: str(error)}
        else:
            if not core.dynamic and not all(_runs(fixed, region) for region in regions):
                return Imported(None, fixed, [whole_region(fixed, regions)], known)
            if not core.dynamic:
                return Imported(core, fixed, regions, known)
            failed = dict.fromkeys(core.dynamic, "the shape of its result depends on values")
        outside = {node for region in regions for node in region.nodes}
        for name, reason in failed.items():
            origin = _origin(name, operators)
            if origin is None or origin in outside:  # nobody knows which operator it was
                known.update(dict.fromkeys(operators, reason))
            else:
                known[origin] = reason


def _runs(fixed: NormalGraph, region: Region) -> bool:
    """Whether onnxruntime takes a region. With static shapes, those of a branch that is never taken
    may contradict each other; the network as it stands in its file has fewer."""
    model = region_model(fixed, region).model
    return not has_branches(model) or opens(model)


def _has_uncompilable_input(fixed: NormalGraph) -> bool:
    """Whether no compiled function takes an input: one of text, or without elements."""
    inputs = data_inputs(fixed.model)
    return any(
        info.type.tensor_type.elem_type not in COMPUTABLE or 0 in (static_shape(info) or ())
        for info in inputs
    )


def _import_core(
    fixed: NormalGraph, regions: Sequence[Region], weightless: bool, keep_last: bool
) -> ImportedWhole:
    """Import a graph with one operator in place of each region; without the regions that run last.
    Where there are no regions, the graph itself is rewritten."""
    inner = [region for region in regions if keep_last or not region.last]
    last = [region for region in regions if region not in inner]
    models = tuple(region_model(fixed, region) for region in inner)
    core = without_last(fixed, last) if last else fixed.model
    assert core is not None
    normal = collapse(replace(fixed, model=core), inner)
    try:
        make_importable(normal)
    except Exception as error:  # a rewrite meets a form that it does not know
        raise OperatorImportError(f"it cannot be rewritten: {last_line(error)}", "") from error
    model = weights_as_inputs(normal.model) if weightless else normal.model
    flat, dynamic = _flat(model, normal.model)
    return ImportedWhole(normal, flat, models, core if last else None, dynamic)


def _origin(name: str, operators: Collection[str]) -> str | None:
    """Return the operator that one of a rewritten graph was made for: it begins with its name."""
    while name and name not in operators:
        name = name.rpartition("/")[0]
    return name or None


def _flat(model: onnx.ModelProto, named: onnx.ModelProto) -> tuple[FlatGraph, tuple[str, ...]]:
    """What TVM's importer makes of a model, with the data inputs of the one `named`; operators
    whose output shapes depend on data."""
    from tilewright.networks.relax.bindings import dynamic_nodes
    from tilewright.networks.relax.importer import import_onnx

    flat = import_onnx(model, [info.name for info in data_inputs(named)])
    return flat, dynamic_nodes(flat)
