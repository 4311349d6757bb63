"""Extract the accelerator layers and the CPU islands of a quantised network.

A CPU island is a group of operators between layers that the CPU runs as one function. Each change
between the accelerator and the CPU costs time. The steps are therefore ordered so that there are
few, long sequences of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import onnx

from tilewright.core.errors import WorkloadError
from tilewright.networks.errors import ImportFailedError, QuantisationError
from tilewright.networks.importing import ImportedWhole, import_whole
from tilewright.networks.integer.graph import CpuIsland, IntegerGraph, Step
from tilewright.networks.integer.layers import Layers, UnfoldRule
from tilewright.networks.integer.products import NotALayer
from tilewright.networks.integer.qdq_propagation import QdqTensors, is_kept
from tilewright.networks.offloading.channel_blocks import best_unfold
from tilewright.networks.offloading.pooling import PoolRule, with_pools
from tilewright.networks.partition.region_models import DOMAIN
from tilewright.networks.relax.bindings import FlatGraph, shape_of, variables
from tilewright.networks.relax.cpu_subgraphs import CpuNode, function_of
from tilewright.networks.relax.op_patterns import Match, matches
from tilewright.networks.relax.partition import macs_by_node
from tilewright.targets.capabilities import Blocks
from tilewright.targets.layer import ChannelSlice, Layer, Value
from tilewright.targets.workload import Workload

AS_ASKED = "it is kept in floating point, as requested"
"""Reason that is shown for an operator that stays in floating point because the user requested
it."""


def integer_graph(
    model: onnx.ModelProto, blocks: Blocks, *, name: str = "network",
    input_shapes: Mapping[str, Sequence[int]] | None = None, keep_float: Collection[str] = (),
    unfold: UnfoldRule | None = None, pool: PoolRule | None = None, exact: bool = True,
    accept: Callable[[Workload], object] = lambda workload: None,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> IntegerGraph:  # fmt: skip
    """Extract the accelerator layers and CPU islands of a quantised model.

    An operator stays on the CPU if its scales are only known at run time, or if the accelerator
    does not accept its workload. `IntegerGraph.left` states the reason for each of these operators.
    A layer whose scales are not a power of two apart runs in two passes.

    Args:
        model: the quantised model (QDQ or QOperator form) with its weights.
        blocks: block sizes of the accelerator.
        name: name of the network.
        input_shapes: shape of each dynamic input, by input name.
        keep_float: names of the operators that stay on the CPU.
        unfold: function that chooses how the input of the first convolution is rearranged (im2col).
            By default, it is `networks.offloading.channel_blocks.best_unfold`.
        pool: function that chooses which max-pools are merged into the convolution before them. By
            default, no pools are merged.
        exact: if True, layers run in two passes where needed. If False, they run in one pass with
            rounded weights, and `IntegerGraph.lost` states the loss of accuracy.
        accept: function that raises `WorkloadError` for a workload that the accelerator does not
            support.
        refused: for each operator that onnxruntime runs instead of TVM, the reason, by operator
            name.

    Returns:
        The network as an integer graph.

    Raises:
        UnsupportedOperatorError: no operator can be compiled, or an operator cannot be imported.
        ImportFailedError: an output does not depend on the inputs, or the model cannot be imported.
    """
    imported = import_whole(name, model, dict(input_shapes or {}), refused)
    return graph_of_import(
        imported, blocks, name=name, keep_float=keep_float, unfold=unfold, pool=pool, exact=exact,
        accept=accept,
    )  # fmt: skip


def graph_of_import(
    imported: ImportedWhole, blocks: Blocks, *, name: str, keep_float: Collection[str] = (),
    unfold: UnfoldRule | None = None, pool: PoolRule | None = None, exact: bool = True,
    accept: Callable[[Workload], object] = lambda workload: None,
) -> IntegerGraph:  # fmt: skip
    """Extract the accelerator layers and CPU islands of a model that was already imported.

    Args:
        imported: the imported model with its weights.
        blocks: block sizes of the accelerator.
        name: name of the network.
        keep_float: names of the operators that stay on the CPU.
        unfold: function that chooses how the input of the first convolution is rearranged; see
            `integer_graph`.
        pool: function that chooses which max-pools are merged into the convolution before them. By
            default, no pools are merged.
        exact: whether layers run in two passes where needed; see `integer_graph`.
        accept: function that raises `WorkloadError` for a workload that the accelerator does not
            support.

    Raises:
        ImportFailedError: an output does not depend on the inputs.
    """
    normal, flat = imported.normal, imported.flat
    types = {o.name: o.op_type for o in normal.operators}
    types |= {node.name: node.op_type for node in normal.graph.node if node.domain == DOMAIN}
    outputs = [info.name for info in normal.graph.output]
    rule = unfold or (lambda workload: best_unfold(workload, blocks))

    def accept_pools(workload: Workload) -> None:
        # Which pools remain separate is only known after the extraction: see `_refused_pools`.
        if pool is None or workload.operator != "max_pool":
            accept(workload)

    def accepted_together(convolution: Workload, window: Workload) -> Workload | None:
        both = None if pool is None else pool(convolution, window)
        try:
            if both is not None:
                accept(both)
        except WorkloadError:
            return None
        return both

    def extracted(kept: Collection[str]) -> IntegerGraph:
        return _Extraction(
            name, flat, types, outputs, blocks, rule, kept,
            pool=None if pool is None else accepted_together, exact=exact,
            accept=accept_pools,
        ).graph()  # fmt: skip

    graph = replace(extracted(keep_float), regions=imported.regions)
    pools = dict(_refused_pools(graph, accept))
    if not pools:
        return graph
    # Extract again with the refused pools on the CPU.
    graph = replace(extracted((*keep_float, *pools)), regions=imported.regions)
    return replace(graph, left={node: pools.get(node, why) for node, why in graph.left.items()})


def _refused_pools(
    graph: IntegerGraph, accept: Callable[[Workload], object]
) -> Iterator[tuple[str, str]]:
    """Find the separate max-pool layers that the accelerator cannot run.

    Args:
        graph: the integer graph.
        accept: function that raises `WorkloadError` for a workload that the accelerator does not
            support.

    Yields:
        Name of each operator, and the reason.
    """
    for step in graph.steps:
        if isinstance(step, Layer) and step.workload.operator == "max_pool":
            try:
                accept(step.workload)
            except WorkloadError as error:
                yield from ((node, str(error)) for node in step.names)


def graph_of_module(
    flat: FlatGraph, types: Mapping[str, str], outputs: Sequence[str], blocks: Blocks, *,
    unfold: UnfoldRule, pool: PoolRule | None = None, name: str = "main",
    keep_float: Collection[str] = (),
) -> IntegerGraph:  # fmt: skip
    """Extract the accelerator layers and CPU islands of a quantised Relax module.

    Operators whose scales are only known at run time stay on the CPU; `IntegerGraph.left` states
    the reasons. The CPU always computes concatenations and slices by copying.

    Args:
        flat: flat view of the module.
        types: ONNX type of each operator, by operator name.
        outputs: names of the results.
        blocks: block sizes of the accelerator.
        unfold: function that chooses how the input of the first convolution is rearranged (im2col).
        pool: function that chooses which max-pools are merged into the convolution before them. By
            default, no pools are merged.
        name: name of the network.
        keep_float: names of the operators that stay on the CPU.

    Raises:
        ImportFailedError: a result does not depend on the inputs.
    """
    return _Extraction(
        name, flat, types, outputs, blocks, unfold, keep_float, pool=pool, in_place=False
    ).graph()


class _Extraction:
    """Converts a quantised Relax module to an integer graph of layers and CPU islands.

    It visits the bindings of the module in order. The arguments are those of `graph_of_module` and
    `integer_graph`.

    Args:
        name: name of the network.
        flat: flat view of the module.
        types: ONNX type of each operator, by operator name.
        outputs: names of the results.
        blocks: block sizes of the accelerator.
        unfold: function that chooses how the input of the first convolution is rearranged (im2col).
        keep_float: names of the operators that stay on the CPU.
        pool: function that chooses which max-pools are merged into the convolution before them.
        in_place: whether concatenations and slices may share memory with their operands instead of
            being copied.
        exact: whether layers run in two passes where needed.
        accept: function that raises `WorkloadError` for a workload that the accelerator does not
            support.
    """

    def __init__(
        self, name: str, flat: FlatGraph, types: Mapping[str, str], outputs: Sequence[str],
        blocks: Blocks, unfold: UnfoldRule, keep_float: Collection[str], *,
        pool: PoolRule | None = None, in_place: bool = True, exact: bool = True,
        accept: Callable[[Workload], object] = lambda workload: None,
    ) -> None:  # fmt: skip
        self._name = name
        self._flat = flat
        self._types = dict(types)
        self._names = outputs
        self._no_layer: tuple[type[Exception], ...] = (NotALayer, WorkloadError, QuantisationError)
        self._macs = macs_by_node(flat)
        self._keep_float = keep_float
        self._blocks = blocks
        self._pool = pool
        self._left: dict[str, str] = {}
        self._tensors = QdqTensors(flat, blocks if in_place else None)
        self._layers = Layers(
            self._tensors, blocks, unfold, self._macs, self._types, exact=exact, accept=accept
        )

    def graph(self) -> IntegerGraph:
        self._walk()
        t = self._tensors
        outputs, results = self._outputs()
        if self._pool is not None:
            self._layers.steps = with_pools(
                self._layers.steps, self._reads(), self._sources(results.values()), self._pool
            )
        runs = order_steps(
            self._layers.steps, t.nodes, self._reads(), self._ready(),
            self._sources(results.values()),
        )  # fmt: skip
        steps = self._steps(runs, set(results.values()))
        read = {name for step in steps for name in _touched_values(step)} | set(results.values())
        slices = self._used_slices(read)
        read |= {
            name for channel_slice in slices for name in (channel_slice.part, channel_slice.whole)
        }
        inputs = tuple(t.values[str(p.name)] for p in self._parameters())
        used = read | {t.quantised[name] for name in read if name in t.quantised}
        values = {n: v for n, v in t.values.items() if n in used} | {v.name: v for v in inputs}
        return IntegerGraph(
            name=self._name,
            inputs=inputs,
            outputs=outputs,
            values=values,
            steps=steps,
            quantised={n: source for n, source in t.quantised.items() if n in read},
            results=results,
            blocks=self._blocks,
            macs=sum(self._macs.values()),
            left=self._left,
            slices=slices,
            lost=self._layers.lost,
        )

    def _sources(self, names: Iterable[str]) -> set[str]:
        """Return the tensors that layers or the CPU must compute so that some tensors exist.

        A concatenation or slice that needs no copy is replaced by the tensors of which it consists.

        Args:
            names: names of the tensors that must exist.
        """
        slices = self._tensors.slices
        return set(names) if slices is None else slices.sources(names)

    def _used_slices(self, read: Collection[str]) -> tuple[ChannelSlice, ...]:
        """Return the concatenations and slices without a copy on which some tensors depend.

        Args:
            read: names of the tensors.
        """
        slices = self._tensors.slices
        return () if slices is None else slices.leading_to(read)

    def _parameters(self) -> list[Any]:
        return [p for p in self._flat.module["main"].params if p in self._flat.data]

    def _walk(self) -> None:
        inside: dict[object, Match] = {
            var: match for match in matches(self._flat) for var in match.vars
        }
        for binding in self._flat.bindings:
            if binding.var in self._flat.constants or binding.op == "Tuple":
                continue
            match = inside.get(binding.var)
            if match is None:
                self._tensors.add_plain(binding)
            # All inputs of a match exist when its last operator is reached.
            elif binding is match.result and not self._is_layer(match):
                for part in (match.anchor, *(link.binding for link in match.chain)):
                    self._tensors.add_plain(part)

    def _is_layer(self, match: Match) -> bool:
        if is_kept(match, self._keep_float):
            self._left[match.anchor.node] = AS_ASKED
            return False
        nodes, steps = len(self._tensors.nodes), len(self._layers.steps)
        try:
            self._layers.write(match)
        except self._no_layer as error:
            self._left[match.anchor.node] = str(error)
            # Remove what was written before the layer turned out to be impossible.
            del self._tensors.nodes[nodes:], self._layers.steps[steps:]
            return False
        return True

    def _outputs(self) -> tuple[tuple[Value, ...], dict[str, str]]:
        """Return the network's outputs, and which tensor contains each of them.

        Returns:
            The outputs, and the name of the tensor by output name.
        """
        body = self._flat.module["main"].body.body
        by_var = self._flat.by_var
        while body in by_var and not by_var[body].args and by_var[body].op.endswith("Var"):
            body = by_var[body].value
        bound = by_var.get(body)
        fields = list(bound.value.fields) if bound is not None and bound.op == "Tuple" else [body]
        outputs, results = [], {}
        for name, var in zip(self._names, fields, strict=True):
            owner = self._tensors.owner_name(var)
            if owner is None:
                raise ImportFailedError(
                    f"output '{name}' of '{self._name}' does not depend on its inputs; "
                    "export the model without it"
                )
            view = self._tensors.view(var)
            scale = None if view is None else view.scale
            outputs.append(Value(name, shape_of(var) or (), str(var.ty.dtype), scale))
            results[name] = owner
        return tuple(outputs), results

    def _ready(self) -> list[str]:
        t = self._tensors
        return [name for name in t.values if name in t.quantised] + [
            str(p.name) for p in self._parameters()
        ]

    def _reads(self) -> dict[str, set[str]]:
        """Return the tensors that must be computed before each layer or CPU node can run.

        A concatenation or slice that needs no copy is replaced by the tensors of which it consists.

        Returns:
            Names of the tensors, by the name of the tensor that the layer or CPU node writes.
        """
        return {name: self._sources(read) for name, read in self._reads_itself().items()}

    def _reads_itself(self) -> dict[str, set[str]]:
        """Return the tensors that each layer or CPU node reads directly.

        Returns:
            Names of the tensors, by the name of the tensor that the layer or CPU node writes.
        """
        reads: dict[str, set[str]] = {}
        for layer in self._layers.steps:
            reads[layer.output] = {
                name for name in (layer.data, layer.residual, layer.weight_from) if name
            }
        for node in self._tensors.nodes:
            owners = (self._tensors.owner_name(var) for var in variables(node.value))
            reads[node.value_name] = {owner for owner in owners if owner is not None}
        return reads

    def _steps(self, runs: Sequence[StepRun], results: set[str]) -> tuple[Step, ...]:
        reads = self._reads_itself()
        later: set[str] = set(results)
        steps: list[Step] = []
        # From the last to the first, since an island only outputs the values that are read later.
        for run in reversed(runs):
            items = [item for item in run.items if isinstance(item, CpuNode)]
            if items:
                number = sum(r.is_cpu for r in runs[: runs.index(run)])
                steps.append(self._island(f"cpu{number}", items, reads, later))
            steps += reversed([item for item in run.items if isinstance(item, Layer)])
            for item in run.items:
                later |= reads[item.output if isinstance(item, Layer) else item.value_name]
        return tuple(reversed(steps))

    def _island(
        self,
        name: str,
        nodes: Sequence[CpuNode],
        reads: Mapping[str, Collection[str]],
        later: Collection[str],
    ) -> CpuIsland:
        t = self._tensors
        written = {node.value_name for node in nodes}
        inputs = sorted({read for n in written for read in reads[n]} - written)
        outputs = [node.value_name for node in nodes if node.value_name in later]
        names = tuple(dict.fromkeys(node.node for node in nodes if node.node))
        return CpuIsland(
            name=name,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            nodes=tuple((node, self._types.get(node, "")) for node in names),
            function=function_of(
                self._flat, nodes, [t.holders[n] for n in inputs],
                [t.holders[n] for n in outputs], t.held_tensors(),
            ),
            written={str(node.var.name): node.node for node in nodes},
        )  # fmt: skip


def _touched_values(step: Step) -> tuple[str, ...]:
    """Return the names of the tensors that a step (a layer or a CPU island) reads and writes."""
    if isinstance(step, CpuIsland):
        return (*step.inputs, *step.outputs)
    names = (step.data, step.residual, step.weight_from, step.output)
    return tuple(name for name in names if name)


Item = Layer | CpuNode


@dataclass(frozen=True)
class StepRun:
    """A sequence of consecutive steps that are either all layers or all CPU nodes.

    A CPU node is a single operator that the CPU computes.

    Attributes:
        items: the layers or CPU nodes, in execution order.
    """

    items: tuple[Item, ...]

    @property
    def is_cpu(self) -> bool:
        """True if the run consists of CPU nodes."""
        return isinstance(self.items[0], CpuNode)


def order_steps(
    layers: Sequence[Layer],
    nodes: Sequence[CpuNode],
    reads: Mapping[str, Collection[str]],
    ready: Iterable[str],
    wanted: Iterable[str],
) -> list[StepRun]:
    """Order layers and CPU nodes into alternating runs that are as long as possible.

    A run of layers contains all remaining layers whose inputs are available at that point.
    Likewise, a run of CPU nodes contains all remaining CPU nodes whose inputs are available.

    Args:
        layers: the layers.
        nodes: the CPU nodes.
        reads: for each tensor, the names of the tensors that must be available before it is
            computed.
        ready: names of the tensors that are available from the start.
        wanted: names of the tensors that are results of the network. Steps on which no result
            depends are dropped.
    """
    written: dict[str, Item] = {layer.output: layer for layer in layers}
    written.update({node.value_name: node for node in nodes})
    needed = _needed_tensors(wanted, reads)
    available = set(ready)
    waiting = {
        True: [n.value_name for n in nodes if n.value_name in needed],
        False: [layer.output for layer in layers if layer.output in needed],
    }
    runs: list[StepRun] = []
    cpu = False
    while waiting[True] or waiting[False]:
        run: list[Item] = []
        for name in list(waiting[cpu]):
            if all(read in available for read in reads[name]):
                run.append(written[name])
                available.add(name)
        done = {_name(item) for item in run}
        waiting[cpu] = [name for name in waiting[cpu] if name not in done]
        if run:
            runs.append(StepRun(tuple(run)))
        cpu = not cpu
    return runs


def _name(item: Item) -> str:
    return item.output if isinstance(item, Layer) else item.value_name


def _needed_tensors(wanted: Iterable[str], reads: Mapping[str, Collection[str]]) -> set[str]:
    """Return all tensors on which some tensors depend, directly or indirectly.

    Args:
        wanted: names of the tensors.
        reads: names of the tensors from which each tensor is computed, by its name.

    Returns:
        Names, including those in `wanted`.
    """
    needed: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(reads.get(name, ()))
    return needed
