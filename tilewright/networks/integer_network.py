"""Convert a network into a graph of integer layers for an accelerator, and report on it.

The operator report, tuning and the build all use this graph. Its operators are either layers, which
the accelerator runs, or parts of islands. An island is a group of operators that the CPU runs as
one function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tilewright.core.files import Json, as_object
from tilewright.networks.fused_calls import FusedCall
from tilewright.networks.importing import import_fixed
from tilewright.networks.integer.calibrated import FINE, calibrate_first_passes
from tilewright.networks.integer.extraction import AS_ASKED, graph_of_import
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.pooling import PoolRule, pool_where_faster
from tilewright.networks.offloading.report import (
    ModelReport,
    OperatorReport,
    WorkloadReport,
    epilogue_text,
)
from tilewright.networks.offloading.workloads import ExtractedWorkload, OffloadDecision, unfold_for
from tilewright.networks.onnx.graph import NormalGraph, operators_of
from tilewright.networks.quantisation import QuantiseOptions, is_quantised
from tilewright.networks.quantisation.quantise import graph_as_it_is, quantise_graph
from tilewright.networks.quantisation.samples import Samples
from tilewright.targets.layer import Layer
from tilewright.targets.rounding import layer_rounded_to_even
from tilewright.targets.workload import Workload, canonical


@dataclass(frozen=True, eq=False)
class InIntegers:
    """A network as a graph of integer layers.

    Attributes:
        graph: the integer layers, and the CPU islands between them.
        quantisation: description of how the network was quantised, for the artifact's manifest.
        warnings: warnings of the quantisation for the user.
    """

    graph: IntegerGraph
    quantisation: Mapping[str, Json]
    warnings: tuple[str, ...] = ()


def in_integers(
    fixed: NormalGraph, accelerator: Accelerator, decisions: Sequence[OffloadDecision], *,
    samples: Samples, calls: Sequence[FusedCall] | None = None, name: str = "network",
    keep_float: Sequence[str] = (), per_channel: bool = False, exact: bool = True,
    pool: PoolRule | None = None, apart: bool = False, judged: bool = True,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> InIntegers:  # fmt: skip
    """Convert a model with its weights to integer layers and CPU islands.

    A float model is quantised to int8 first. A quantised model keeps its own scales.

    Args:
        fixed: the model with its weights and static shapes. It is not modified.
        accelerator: the accelerator that runs the layers.
        decisions: the offloading decision for each call. Calls that are faster on the CPU stay
            there.
        samples: calibration samples. A float model is quantised with them. For a quantised model,
            they only determine the scales of first-pass results (see `integer.calibrated`).
        calls: the fused calls of the model, if they are known already. Otherwise they are searched
            for.
        name: name of the network.
        keep_float: names of operators that stay on the CPU.
        per_channel: quantise the weights of a float model with one scale per channel.
        exact: for a quantised model, run a layer whose scales are not a power of two apart in two
            passes. If false, use one pass with rounded weights. See `integer_graph`.
        pool: decides whether a max-pool is merged into the convolution before it. By default it is
            merged if that is estimated to be faster.
        apart: never merge max-pools into convolutions.
        judged: measure the quality of the quantisation of a float model; see `quantise`.
        refused: operators that are not to be compiled: name to reason.

    Returns:
        The graph, a description of the quantisation, and warnings.

    Raises:
        QuantisationError: the model cannot be quantised or represented on the accelerator.
        InputError: the samples do not fit the model.
    """
    if is_quantised(fixed.model):
        graph = quantised_graph(
            fixed, accelerator, decisions, samples=samples, name=name, keep_float=keep_float,
            exact=exact, pool=pool, apart=apart, refused=refused,
        )  # fmt: skip
        said: dict[str, Json] = {"method": "as the model defines it"}
        if graph.lost:
            said["rounded_weights_decibels"] = dict(graph.lost)
        return InIntegers(graph, said)
    on_cpu = (*keep_float, *cheaper_on_cpu(decisions))
    options = QuantiseOptions(keep_float=on_cpu, per_channel=per_channel)
    made = quantise_graph(fixed, samples, options, judged=judged, calls=calls)
    written = NormalGraph(made.model, operators_of(made.model))  # it is in normal form
    graph = graph_of_import(
        import_fixed(name, written, refused), accelerator.blocks, name=name, keep_float=on_cpu,
        unfold=lambda plain: unfold_for(plain, accelerator),
        pool=None if apart else pool or _pooled_on(accelerator), accept=accelerator.accept,
    )  # fmt: skip
    graph = _in_form(graph, accelerator)
    return InIntegers(graph, as_object(made.report.to_json()), made.report.warnings)


def _pooled_on(accelerator: Accelerator) -> PoolRule:
    """Return a function that fuses a max-pool with the convolution before it where that is faster.

    Args:
        accelerator: the accelerator on which the times are compared.

    Returns:
        A function from the two workloads to the fused workload, or to None if they stay separate.
    """
    return lambda convolution, after: pool_where_faster(convolution, after, accelerator)


def quantised_graph(
    fixed: NormalGraph, accelerator: Accelerator, decisions: Sequence[OffloadDecision], *,
    samples: Samples, name: str = "network", keep_float: Sequence[str] = (), exact: bool = True,
    pool: PoolRule | None = None, apart: bool = False,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> IntegerGraph:  # fmt: skip
    """Convert a model that is already quantised to integer layers and CPU islands.

    Args:
        fixed: the quantised model with its weights and static shapes. It is not modified.
        accelerator: the accelerator that runs the layers.
        decisions: the offloading decision for each call. Calls that are faster on the CPU stay
            there.
        samples: calibration samples that determine the scales of first-pass results (see
            `integer.calibrated`).
        name: name of the network.
        keep_float: names of operators that stay on the CPU.
        exact: run a layer whose scales are not a power of two apart in two passes. If false, use
            one pass with rounded weights. See `integer_graph`.
        pool: decides whether a max-pool is merged into the convolution before it. By default it is
            merged if that is estimated to be faster.
        apart: never merge max-pools into convolutions.
        refused: operators that are not to be compiled: name to reason.

    Returns:
        The graph of integer layers.

    Raises:
        QuantisationError: the scales cannot be represented on the accelerator.
        InputError: the samples do not fit the model.
    """
    on_cpu = (*keep_float, *cheaper_on_cpu(decisions))
    made = graph_as_it_is(fixed, on_cpu)
    graph = graph_of_import(
        import_fixed(name, fixed, refused), accelerator.blocks, name=name, keep_float=on_cpu,
        unfold=lambda plain: unfold_for(plain, accelerator),
        pool=None if apart else pool or _pooled_on(accelerator), exact=exact,
        accept=accelerator.accept,
    )  # fmt: skip
    return _in_form(calibrate_first_passes(graph, made.model, samples.feeds), accelerator)


def _in_form(graph: IntegerGraph, accelerator: Accelerator) -> IntegerGraph:
    """Adapt the layers of a graph to the rounding of an accelerator.

    Args:
        graph: the integer graph.
        accelerator: the accelerator. If it does not round ties to even, the graph is returned
            unchanged.
    """
    if not accelerator.rounds_to_even:
        return graph
    steps = (
        layer_rounded_to_even(step) if isinstance(step, Layer) else step for step in graph.steps
    )
    return replace(graph, steps=tuple(steps))


def cheaper_on_cpu(decisions: Sequence[OffloadDecision]) -> tuple[str, ...]:
    """Return the names of operators that are estimated to be faster on the CPU.

    Operators that cannot be offloaded are not included.
    """
    return tuple(
        decision.fused.node for decision in decisions
        if decision.workload is None and decision.accelerator_seconds is not None
    )  # fmt: skip


def workloads_of(graph: IntegerGraph) -> list[ExtractedWorkload]:
    """Return the workloads to tune for a graph.

    Layers with the same canonical workload are tuned once. A layer that runs in two passes is named
    after its operator, and its first pass after the operator with the suffix `FINE`.

    Args:
        graph: the graph of integer layers.

    Returns:
        One (workload, calls per inference, operator names) per workload, in the order of first use.
    """
    workloads: dict[Workload, list[Layer]] = {}
    for layer in graph.layers:
        workloads.setdefault(canonical(layer.workload), []).append(layer)
    return [
        ExtractedWorkload(w, len(same), tuple(dict.fromkeys(map(_name, same))))
        for w, same in workloads.items()
    ]


def report_placement(report: ModelReport, graph: IntegerGraph) -> ModelReport:
    """Return a copy of a report, updated to the integer graph.

    Each operator gets the place where the graph runs it, except operators that run in onnxruntime.
    The workloads and the number of offloaded multiply-accumulates are replaced by those of the
    graph's layers.

    Args:
        report: the report that was made from the offloading decisions.
        graph: the graph of integer layers, which decides where each operator runs.
    """
    owners: dict[str, Layer] = {}
    for layer in graph.layers:
        owners |= dict.fromkeys(layer.names, layer)  # a second pass comes after its first
    passes = Counter(layer.names for layer in graph.layers)
    on_cpu = {name for island in graph.islands for name, _ in island.nodes}
    return replace(
        report,
        operators=tuple(
            _operator(operator, graph, owners, passes, on_cpu, report.quantised)
            for operator in report.operators
        ),
        workloads=tuple(
            WorkloadReport(w.id, str(w), epilogue_text(w), calls, w.macs, names)
            for w, calls, names in workloads_of(graph)
        ),
        offloaded_macs=sum(layer.macs for layer in graph.layers),
    )


def with_nothing(report: ModelReport, reason: str) -> ModelReport:
    """Return a copy of a report in which no operator is offloaded.

    Every operator that has a workload becomes a CPU operator with the given reason.

    Args:
        report: the report that was made from the offloading decisions.
        reason: why nothing can be offloaded.
    """
    return replace(
        report,
        operators=tuple(
            replace(_bare(operator), status="cpu", reason=reason)
            if operator.workload is not None
            else operator
            for operator in report.operators
        ),
        workloads=(),
        offloaded_macs=0,
    )


def _operator(
    own: OperatorReport,
    graph: IntegerGraph,
    owners: Mapping[str, Layer],
    passes: Mapping[tuple[str, ...], int],
    on_cpu: set[str],
    quantised: bool,
) -> OperatorReport:
    """Return the report of one operator, updated with where the integer graph runs it.

    Args:
        own: the report that was made before the graph was known.
        graph: the graph of integer layers.
        owners: the layer that contains each operator, by operator name.
        passes: number of layers with the same operator names: two for a layer in two passes, one
            per head for a product of activations.
        on_cpu: names of the operators that run on the CPU.
        quantised: whether the source model was quantised already.
    """
    if own.status == "onnxruntime":
        return own
    layer = owners.get(own.name)
    if layer is not None:
        anchor = layer.names[0]
        if own.name != anchor:
            reason = f"in the epilogue of '{anchor}'"
            return replace(_bare(own), status="offloaded", reason=reason)
        workload = canonical(layer.workload)
        remark = "" if quantised else own.reason  # of a quantised model it foretells its scales
        return replace(
            own, status="offloaded", next_step="", workload=str(workload), workload_id=workload.id,
            reason=remark or _passes(layer, passes[layer.names]),
        )  # fmt: skip
    if own.name in on_cpu:
        if own.status == "cpu" and graph.left.get(own.name, AS_ASKED) == AS_ASKED:
            return own
        reason = graph.left.get(own.name, "its inputs or outputs are not in int8")
        return replace(_bare(own), status="cpu", reason=reason)
    if own.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return replace(
            _bare(own), status="offloaded", reason="int8 data are read without conversion"
        )
    return own if own.status == "cpu" else replace(_bare(own), status="offloaded")


def _bare(own: OperatorReport) -> OperatorReport:
    return replace(own, next_step="", workload=None, workload_id=None, accelerator_seconds=None)


def _passes(layer: Layer, passes: int) -> str:
    if layer.residual is not None and layer.residual.endswith(FINE):
        return "its scales differ by factors that are not powers of two, so it takes two passes"
    return f"{passes} matrix products, one per head" if passes > 1 else ""


def _name(layer: Layer) -> str:
    return layer.name if layer.name.endswith(FINE) else layer.names[0]
