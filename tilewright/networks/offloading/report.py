"""Report on every operator of a model before tuning, as plain data that can be written as JSON."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from tilewright.core.files import Json
from tilewright.networks.imported_model import Examined
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.cpu_costs import operator_seconds
from tilewright.networks.offloading.decisions import concatenations
from tilewright.networks.offloading.workloads import (
    OffloadDecision,
    collect_workloads,
    offloaded_macs,
)
from tilewright.networks.onnx.graph import Absorbed, Operator, Shape
from tilewright.networks.partition.regions import Region
from tilewright.targets.workload import Workload

Status = Literal["offloaded", "cpu", "onnxruntime", "unsupported"]


@dataclass(frozen=True)
class OperatorReport:
    """Report on one operator of a model.

    Attributes:
        name: name of the operator.
        op_type: type of the operator.
        status: where the operator runs, or "unsupported".
        reason: why it runs there.
        next_step: advice for the user how to offload it; "" if there is none.
        output_shape: shape of the output, if it is known.
        macs: multiply-accumulates; 0 for operators that are neither convolutions nor matrix
            products.
        waste: fraction of the accelerator's multiplications that are with zeros.
        workload: the workload as text for `targets.workload.parse_workload`.
        workload_id: ID of the workload.
        accelerator_seconds: lower bound on the time of the operator and the operators fused into it
            on the accelerator, including packing; None if it cannot run there or no bound is known.
        cpu_seconds: estimated time on the CPU (`networks.offloading.cpu_costs`); 0 if the operator
            does no work or is fused into another operator.
    """

    name: str
    op_type: str
    status: Status
    reason: str = ""
    next_step: str = ""
    output_shape: Shape | None = None
    macs: int = 0
    waste: float = 0.0
    workload: str | None = None
    workload_id: str | None = None
    accelerator_seconds: float | None = None
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class WorkloadReport:
    """A workload to tune.

    Attributes:
        id: ID of the workload.
        workload: the workload as text.
        epilogue: its epilogue (fused post-operations) as text.
        calls: number of calls per inference.
        macs: multiply-accumulates of one call, including padding.
        names: names of the operators that call it.
    """

    id: str
    workload: str
    epilogue: str
    calls: int
    macs: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class RegionReport:
    """A region of the network (a group of operators) that onnxruntime runs.

    Attributes:
        operators: names of the operators.
        macs: their multiply-accumulates.
        cause: name of the first operator in the region that cannot be compiled.
        cause_type: type of that operator.
        reason: why it cannot be compiled.
    """

    operators: tuple[str, ...]
    macs: int
    cause: str
    cause_type: str
    reason: str


@dataclass(frozen=True)
class ModelReport:
    """Report on how a model runs on an accelerator.

    Attributes:
        model: name of the model.
        inputs: shape of each input, by name.
        block_in: input channels per block.
        block_out: output channels per block.
        batch: batch size per block.
        quantised: True if the model is quantised.
        operators: reports on the operators, in the order of the model.
        workloads: workloads to tune.
        total_macs: multiply-accumulates of all operators, on the accelerator, the CPU and in
            onnxruntime. Operators in onnxruntime regions count if their shapes are known.
        offloaded_macs: multiply-accumulates of the offloaded operators.
        notes: further remarks, as sentences.
        regions: regions that onnxruntime runs.
    """

    model: str
    inputs: dict[str, Shape]
    block_in: int
    block_out: int
    batch: int
    quantised: bool
    operators: tuple[OperatorReport, ...]
    workloads: tuple[WorkloadReport, ...]
    total_macs: int
    offloaded_macs: int
    notes: tuple[str, ...] = ()
    regions: tuple[RegionReport, ...] = ()

    def by_status(self, status: Status) -> list[OperatorReport]:
        """Return the operators with a given status, in the order of the model."""
        return [operator for operator in self.operators if operator.status == status]

    @property
    def accelerator_seconds(self) -> float | None:
        """Lower bound on the seconds of the offloaded operators with packing; None if unknown."""
        known = [o.accelerator_seconds for o in self.by_status("offloaded") if o.workload]
        return None if None in known else sum(item or 0.0 for item in known)

    @property
    def cpu_seconds(self) -> float:
        """Estimated seconds of the operators that run on the CPU or in onnxruntime."""
        on_cpu = (*self.by_status("cpu"), *self.by_status("onnxruntime"))
        return sum(operator.cpu_seconds for operator in on_cpu)

    @property
    def offloaded_share(self) -> float:
        """Fraction of all multiply-accumulates that are offloaded; 0 if there are none."""
        return self.offloaded_macs / max(self.total_macs, 1)

    def to_dict(self) -> dict[str, Json]:
        """Return the report as dicts and lists of numbers and strings."""
        return asdict(self)


def build_report(
    examined: Examined, accelerator: Accelerator, decisions: list[OffloadDecision]
) -> ModelReport:
    """Build the report on a model.

    Args:
        examined: the network.
        accelerator: the accelerator.
        decisions: the decision on each fused call.

    Returns:
        The report, with one entry per operator of the model.
    """
    blocks = accelerator.blocks
    reports = _operators(examined, decisions, accelerator)
    return ModelReport(
        model=examined.name,
        inputs=dict(examined.inputs),
        block_in=blocks.in_channels,
        block_out=blocks.out_channels,
        batch=blocks.batch,
        quantised=any(call.data_quantisation for call in examined.found.fused_calls),
        operators=reports,
        workloads=tuple(
            WorkloadReport(w.id, str(w), epilogue_text(w), calls, w.macs, names)
            for w, calls, names in collect_workloads(decisions)
        ),
        total_macs=sum((*examined.found.macs.values(), *examined.region_macs.values())),
        offloaded_macs=offloaded_macs(decisions),
        notes=examined.notes,
        regions=tuple(_region(region, examined) for region in examined.regions),
    )


def _region(region: Region, examined: Examined) -> RegionReport:
    macs = sum(examined.region_macs.get(name, 0) for name in region.nodes)
    if not region.causes:
        return RegionReport(region.nodes, macs, "", "", "")
    first = region.causes[0]
    return RegionReport(region.nodes, macs, first.name, first.operator, first.reason)


def epilogue_text(workload: Workload) -> str:
    """Return the epilogue of a workload as text for `targets.epilogue.parse_epilogue`."""
    return ", ".join(str(op) for op in workload.epilogue)


def _operators(
    examined: Examined, decisions: list[OffloadDecision], accelerator: Accelerator
) -> tuple[OperatorReport, ...]:
    reports: dict[str, OperatorReport] = {}
    for decision in decisions:
        reports.setdefault(decision.fused.node, _anchor(decision))
    for decision in decisions:
        for step in decision.fused.steps:
            reports.setdefault(step.node, _follower(step.node, decision))
    for operator in reversed(examined.operators):  # the reports on its readers must exist
        if operator.name not in reports and operator.name not in examined.absorbed:
            reports[operator.name] = _other(operator, examined, reports, accelerator.slowdown)
    for name, absorbed in examined.absorbed.items():
        reports[name] = _gone(name, absorbed, reports)
    on = {name for name, report in reports.items() if report.status == "offloaded"}
    for name in concatenations(examined, examined.writers, on, accelerator.blocks):
        note = "no work: the tensors that it joins are written next to each other"
        reports[name] = OperatorReport(name, "", "offloaded", note)
    return tuple(
        _named(reports[operator.name], operator, examined) for operator in examined.operators
    )


def _named(report: OperatorReport, operator: Operator, examined: Examined) -> OperatorReport:
    return replace(
        report,
        name=operator.name,
        op_type=operator.op_type,
        macs=examined.found.macs.get(operator.name, 0)
        or examined.region_macs.get(operator.name, 0),
        output_shape=examined.shapes.get(operator.name),
    )


def _anchor(decision: OffloadDecision) -> OperatorReport:
    workload, seconds = decision.workload, decision.accelerator_seconds
    return OperatorReport(
        name=decision.fused.node,
        op_type="",
        status="cpu" if workload is None and not decision.within else "offloaded",
        reason=f"part of the sums of '{decision.within}'" if decision.within else decision.reason,
        next_step=decision.next_step,
        waste=round(decision.waste, 4),
        workload=None if workload is None else str(workload),
        workload_id=None if workload is None else workload.id,
        accelerator_seconds=None if seconds == math.inf else seconds,
        cpu_seconds=decision.cpu_seconds,
    )


def _follower(name: str, decision: OffloadDecision) -> OperatorReport:
    anchor = decision.fused.node
    if decision.workload is None and not decision.within:
        return OperatorReport(name, "", "cpu", f"follows '{anchor}', which stays on the CPU")
    return OperatorReport(name, "", "offloaded", f"in the epilogue of '{anchor}'")


def _gone(name: str, absorbed: Absorbed, reports: Mapping[str, OperatorReport]) -> OperatorReport:
    if absorbed.into is None:
        return OperatorReport(name, "", "cpu", f"no work: {absorbed.note}")
    status = reports[absorbed.into].status if absorbed.into in reports else "cpu"
    return OperatorReport(name, "", status, f"{absorbed.note} ('{absorbed.into}')")


def _other(
    operator: Operator, examined: Examined, reports: Mapping[str, OperatorReport], slowdown: float
) -> OperatorReport:
    name = operator.name
    if name in examined.unsupported:
        return OperatorReport(name, "", "unsupported", *examined.unsupported[name])
    if (reason := examined.outside_operators.get(name)) is not None:
        seconds = slowdown * _cpu_seconds(operator, examined)
        return OperatorReport(name, "", "onnxruntime", reason, cpu_seconds=seconds)
    if name in examined.found.constant_nodes:
        return OperatorReport(
            name, "", "cpu", "no work: computed once in advance, from weights only"
        )
    readers = examined.readers.get(name, ())
    int8_read = readers and all(
        reader in reports and reports[reader].status == "offloaded" for reader in readers
    )
    if operator.op_type == "DequantizeLinear" and int8_read:
        return OperatorReport(name, "", "offloaded", "the accelerator reads the int8 data directly")
    reason = CPU_REASONS.get(operator.op_type, NOT_A_PRODUCT)
    seconds = slowdown * _cpu_seconds(operator, examined)
    return OperatorReport(name, "", "cpu", reason, cpu_seconds=seconds)


def _cpu_seconds(operator: Operator, examined: Examined) -> float:
    """Return the estimated seconds of an operator on the CPU.

    Args:
        operator: an operator that is not part of a fused call.
        examined: the network, from which the shapes are read.
    """
    written = examined.shapes.get(operator.name, ())
    read = [examined.shapes.get(writer, ()) for writer in examined.writers.get(operator.name, ())]
    elements = max(map(math.prod, (written, *read)))
    rows = math.prod(written[:-1])
    macs = examined.found.macs.get(operator.name, 0)
    return operator_seconds(operator.op_type, macs, elements, rows)


NOT_A_PRODUCT = "not a convolution, matrix product, pooling or sum, and not fused into one"
POOL = "only pooling of images and of sequences without dilation is offloaded"
UNFUSED = (
    "only a ReLU, a clip with minimum zero, a change of scale and a sum of two tensors of "
    "one shape are offloaded by themselves"
)
NONLINEAR = "needs more than the accelerator's operations min, max, add and shift"
NO_SCHEDULE = "not a plain product of two matrices or of two stacks of matrices"
OTHER_CONVOLUTION = (
    "only convolutions of images, sequences and volumes with constant weights are offloaded"
)
TRANSPOSED = "transposed convolutions with dilation or without constant weights cannot be scheduled"
NO_CONSTANT = "only products with constant weights or of two stacks of matrices are offloaded"

CPU_REASONS: Mapping[str, str] = {
    reason_of: reason
    for reason, operators in (
        (POOL, (
            "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "max_pool2d",
            "max_pool2d_with_indices", "avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d",
            "mean",
        )),
        ("only moves data", (
            "Reshape", "Flatten", "Transpose", "Concat", "Slice", "Split", "Squeeze", "Unsqueeze",
            "Pad", "Gather", "Expand", "Resize", "DepthToSpace", "view", "reshape", "permute",
            "cat", "flatten", "clone", "dropout",
        )),
        (UNFUSED, ("Add", "Relu", "Clip", "add", "relu", "hardtanh", "clamp")),
        ("a change of type at the border of the accelerator", (
            "QuantizeLinear", "DequantizeLinear",
        )),
        (NONLINEAR, (
            "Softmax", "LogSoftmax", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Gelu", "Erf",
            "Exp", "Elu", "LeakyRelu", "LRN", "LayerNormalization",
        )),
        ("no convolution directly before it that it can be folded into", (
            "BatchNormalization", "_native_batch_norm_legit_no_training",
        )),
        (OTHER_CONVOLUTION, ("Conv", "convolution")),
        (TRANSPOSED, ("ConvTranspose",)),
        (NO_CONSTANT, ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "mm", "bmm", "addmm")),
        (NO_SCHEDULE, ("Einsum", "Attention", "MultiHeadAttention")),
    )
    for reason_of in operators
}  # fmt: skip


SHOWN_KINDS = 6
SHOWN_NAMES = 2


def nothing_offloaded(report: ModelReport) -> str:
    """Return the error message for a network without any operator that can be offloaded.

    The message lists the types of operators with the reason and the next step for each, ordered by
    multiply-accumulates.
    """
    kinds: dict[tuple[str, str, str], list[OperatorReport]] = defaultdict(list)
    for operator in report.operators:
        kinds[operator.op_type, operator.reason, operator.next_step].append(operator)
    heaviest = sorted(
        kinds.values(), key=lambda same: (-sum(operator.macs for operator in same), -len(same))
    )
    more = (
        f"; {len(heaviest) - SHOWN_KINDS} more kinds of operators"
        if len(heaviest) > SHOWN_KINDS
        else ""
    )
    return (
        f"no operator of '{report.model}' can be offloaded to "
        f"{report.block_in}×{report.block_out} blocks, so there is nothing to tune: "
        f"{'; '.join(map(_kind, heaviest[:SHOWN_KINDS]))}{more}. `tilewright inspect "
        f"{report.model}` with the same options lists every operator; choose a model with "
        "convolutions or matrix products"
    )


def _kind(same: list[OperatorReport]) -> str:
    first = same[0]
    names = ", ".join(f"'{operator.name}'" for operator in same[:SHOWN_NAMES])
    dots = ", …" if len(same) > SHOWN_NAMES else ""
    step = f" ({first.next_step})" if first.next_step else ""
    return f"{len(same)} {first.op_type} ({names}{dots}): {first.reason}{step}"
