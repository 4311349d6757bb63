"""Import a network into TVM. Operators that TVM cannot import are moved to onnxruntime regions."""

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
"""Pooling operators. They count as layers with kernels, although they perform no
multiply-accumulates."""


@dataclass(frozen=True, eq=False)
class ImportedWhole:
    """The part of a network that is compiled, after its import into TVM.

    Attributes:
        normal: the compiled part in normal form.
        flat: the Relax module from TVM's importer, with a list of its bindings.
        regions: models of the onnxruntime regions that the module calls.
        model: the compiled part before normalisation, None if it is the whole network.
        dynamic: names of operators whose result shapes TVM does not know before inference.
    """

    normal: NormalGraph
    flat: FlatGraph
    regions: tuple[RegionModel, ...]
    model: onnx.ModelProto | None = None
    dynamic: tuple[str, ...] = ()


def import_whole(
    name: str, model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]],
    refused: Mapping[str, str] = MappingProxyType({}),
) -> ImportedWhole:  # fmt: skip
    """Import a model with its weights. Compiled code calls all of its onnxruntime regions.

    Args:
        name: name of the model for messages.
        model: the model with its weights.
        input_shapes: shape for each dynamic input, by input name.
        refused: operators that are not to be compiled: name to reason.

    Returns:
        The compiled part of the network.

    Raises:
        UnsupportedOperatorError: no operator of the model can be compiled.
        DynamicShapeError: an input's shape is unknown or wrong.
    """
    return import_fixed(name, fixed_graph(to_qdq(model), input_shapes), refused)


def import_fixed(
    name: str, fixed: NormalGraph, refused: Mapping[str, str] = MappingProxyType({})
) -> ImportedWhole:
    """Import a graph with static shapes. Compiled code calls all of its onnxruntime regions.

    Args:
        name: name of the model for messages.
        fixed: the graph with its weights.
        refused: operators that are not to be compiled: name to reason.

    Returns:
        The compiled part of the network.

    Raises:
        UnsupportedOperatorError: no operator of the graph can be compiled.
    """
    imported = import_compiled(fixed, refused, keep_last=True)
    if imported.core is None:
        raise UnsupportedOperatorError(
            f"no operator of '{name}' can be compiled: {_first_cause(imported.regions)}; "
            "build it to run it in onnxruntime"
        )
    return imported.core


def fused_calls(normal: NormalGraph) -> tuple[FusedCall, ...]:
    """Import a normalised model and return the operators that an accelerator could run.

    Args:
        normal: the model. It is not modified.

    Returns:
        The operators with their fused steps, in execution order; empty if nothing can be compiled.
    """
    from tilewright.networks.relax.partition import partition

    imported = import_compiled(weightless_graph(normal), {}, weightless=True)
    return () if imported.core is None else partition(imported.core.flat).found.calls


def weightless_graph(normal: NormalGraph) -> NormalGraph:
    """Return a copy of a graph whose weights have shapes but no data.

    See `networks.onnx.files.without_weights`.
    """
    model, absorbed = without_weights(normal.model), dict(normal.absorbed)
    return replace(normal, model=model, absorbed=absorbed)


def _first_cause(regions: Sequence[Region]) -> str:
    cause = next((cause for region in regions for cause in region.causes), None)
    return "it has no multiplications" if cause is None else f"'{cause.name}': {cause.reason}"


@dataclass(frozen=True, eq=False)
class Imported:
    """Result of partitioning and importing a model.

    Attributes:
        core: the compiled part, None if nothing is compiled.
        fixed: the graph with static shapes that was partitioned.
        regions: the parts of the graph that onnxruntime runs.
        refused: operators that cannot be compiled: name to reason.
    """

    core: ImportedWhole | None
    fixed: NormalGraph
    regions: Sequence[Region]
    refused: Mapping[str, str]

    @property
    def has_layers(self) -> bool:
        """True if the compiled part contains a pool or an operator with multiply-accumulates."""
        if self.core is None:
            return False
        normal = self.core.normal
        pools = any(node.op_type in POOLS for node in normal.graph.node)
        return pools or bool(graph_macs(normal, {node.name for node in normal.graph.node}))

    @property
    def last(self) -> list[Region]:
        """The regions that onnxruntime runs after all compiled code."""
        return [region for region in self.regions if region.last]


def import_compiled(
    graph: NormalGraph, refused: Mapping[str, str], *, weightless: bool = False,
    keep_last: bool = False,
) -> Imported:  # fmt: skip
    """Partition a graph and import the part that is compiled.

    If TVM cannot import an operator, or does not know its result shape, the operator is moved to an
    onnxruntime region, and the import starts again.

    Args:
        graph: the graph with static shapes, as `fixed_graph` returns it. It is not modified.
        refused: further operators that are not to be compiled: name to reason.
        weightless: turn tensors without data into inputs.
        keep_last: let compiled code also call the regions that would run after it.

    Returns:
        The compiled part, the partitioned graph and its regions. The compiled part is None, and the
        whole graph is one region, if no operator can be compiled or onnxruntime rejects a region.
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
            failed = dict.fromkeys(
                core.dynamic, "the shape of its result depends on values of tensors"
            )
        outside = {node for region in regions for node in region.nodes}
        for name, reason in failed.items():
            origin = _origin(name, operators)
            if origin is None or origin in outside:  # nobody knows which operator it was
                known.update(dict.fromkeys(operators, reason))
            else:
                known[origin] = reason


def _runs(fixed: NormalGraph, region: Region) -> bool:
    """Return whether onnxruntime accepts a region, a part of the network that it would run.

    Regions of models without branches are always accepted. In a model with branches, the static
    shapes inside a branch that is never taken may contradict each other, so onnxruntime has to try
    the region.

    Args:
        fixed: the graph with static shapes.
        region: the region.
    """
    model = region_model(fixed, region).model
    return not has_branches(model) or opens(model)


def _has_uncompilable_input(fixed: NormalGraph) -> bool:
    """Return whether an input has no elements or a type such as text that cannot be compiled."""
    inputs = data_inputs(fixed.model)
    return any(
        info.type.tensor_type.elem_type not in COMPUTABLE or 0 in (static_shape(info) or ())
        for info in inputs
    )


def _import_core(
    fixed: NormalGraph, regions: Sequence[Region], weightless: bool, keep_last: bool
) -> ImportedWhole:
    """Import the compiled part of a partitioned graph into TVM.

    Each onnxruntime region that compiled code calls is replaced by one operator. Regions that run
    after the compiled code are removed, unless `keep_last` is true.

    Args:
        fixed: the graph with static shapes. It is modified if there are no regions.
        regions: the regions of the graph.
        weightless: turn tensors without data into inputs.
        keep_last: let compiled code also call the regions that would run after it.
    """
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
    """Return the source operator from which a rewrite created an operator.

    A rewrite names the operators that it creates `source/suffix`, so suffixes are removed until a
    known name remains.

    Args:
        name: name of the operator.
        operators: names of all source operators.

    Returns:
        The name of the source operator, or None if there is none.
    """
    while name and name not in operators:
        name = name.rpartition("/")[0]
    return name or None


def _flat(model: onnx.ModelProto, named: onnx.ModelProto) -> tuple[FlatGraph, tuple[str, ...]]:
    """Import a model into TVM.

    Args:
        model: the model to import.
        named: the same model with its weights as initialisers; its inputs become the parameters of
            `main`.

    Returns:
        The module with a list of its bindings, and the operators whose output shapes depend on
        values.
    """
    from tilewright.networks.relax.bindings import dynamic_nodes
    from tilewright.networks.relax.importer import import_onnx

    flat = import_onnx(model, [info.name for info in data_inputs(named)])
    return flat, dynamic_nodes(flat)
