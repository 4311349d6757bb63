"""Reports what becomes of every operator of a model, before anything is tuned: plain data for
JSON."""

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
    """One operator. `macs` are those of whatever sums products; `waste` is the share of the
    accelerator's multiplications by zeros; `workload` is the text
    `targets.workload.parse_workload` reads.

    `accelerator_seconds` is what the operator with all that is fused behind it takes at least
    there, packing included, None where it cannot run or nobody knows; `cpu_seconds` is an estimate
    for the CPU (`networks.offloading.cpu_costs`), 0 for what does no work or is fused behind
    another.
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
    """One workload to tune. `macs` of one call as padded; `names` the operators that call it."""

    id: str
    workload: str
    epilogue: str
    calls: int
    macs: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class RegionReport:
    """What onnxruntime runs as one model: operators by name, their multiply-accumulates, and the
    first operator that is not compiled, with the reason."""

    operators: tuple[str, ...]
    macs: int
    cause: str
    cause_type: str
    reason: str


@dataclass(frozen=True)
class ModelReport:
    """A model on an accelerator. `total_macs` count every operator that sums products, wherever it
    runs: convolutions of any kind, products of weights or activations, attention, and those of
    operators that onnxruntime runs, where their shapes are known. `notes` are what else there is
    to know, in sentences."""

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
        """The operators that share a fate, in the model's order."""
        return [operator for operator in self.operators if operator.status == status]

    @property
    def accelerator_seconds(self) -> float | None:
        """What the offloaded operators take at least, packing included; None where nobody knows."""
        known = [o.accelerator_seconds for o in self.by_status("offloaded") if o.workload]
        return None if None in known else sum(each or 0.0 for each in known)

    @property
    def cpu_seconds(self) -> float:
        """An estimate of what the operators take that stay on the CPU."""
        on_cpu = (*self.by_status("cpu"), *self.by_status("onnxruntime"))
        return sum(operator.cpu_seconds for operator in on_cpu)

    @property
    def offloaded_share(self) -> float:
        """Of all multiply-accumulates; 0 where there are none."""
        return self.offloaded_macs / max(self.total_macs, 1)

    def to_dict(self) -> dict[str, Json]:
        """Lists, numbers and strings only."""
        return asdict(self)


def build_report(
    examined: Examined, accelerator: Accelerator, decisions: list[OffloadDecision]
) -> ModelReport:
    """Say what becomes of every operator, by what was decided of every fused call."""
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
    """The epilogue as `targets.epilogue.parse_epilogue` reads it."""
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
    for operator in reversed(examined.operators):  # readers before what they read
        if operator.name not in reports and operator.name not in examined.absorbed:
            reports[operator.name] = _other(operator, examined, reports, accelerator.slowdown)
    for name, absorbed in examined.absorbed.items():
        reports[name] = _gone(name, absorbed, reports)
    on = {name for name, report in reports.items() if report.status == "offloaded"}
    for name in concatenations(examined, examined.writers, on, accelerator.blocks):
        note = "no work: what it joins is written side by side"
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
        reason=f"of the sums of '{decision.within}'" if decision.within else decision.reason,
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
        return OperatorReport(name, "", "cpu", f"follows '{anchor}', which is left to the CPU")
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
    if (reason := examined.outside.get(name)) is not None:
        seconds = slowdown * _cpu_seconds(operator, examined)
        return OperatorReport(name, "", "onnxruntime", reason, cpu_seconds=seconds)
    if name in examined.found.constant_nodes:
        return OperatorReport(name, "", "cpu", "no work: computed once, from weights alone")
    readers = examined.readers.get(name, ())
    int8_read = readers and all(
        reader in reports and reports[reader].status == "offloaded" for reader in readers
    )
    if operator.op_type == "DequantizeLinear" and int8_read:
        return OperatorReport(name, "", "offloaded", "the accelerator reads the int8 data itself")
    reason = CPU_REASONS.get(operator.op_type, NOT_A_PRODUCT)
    seconds = slowdown * _cpu_seconds(operator, examined)
    return OperatorReport(name, "", "cpu", reason, cpu_seconds=seconds)


def _cpu_seconds(operator: Operator, examined: Examined) -> float:
    """On the machine that was measured; of an operator that is no call."""
    written = examined.shapes.get(operator.name, ())
    read = [examined.shapes.get(writer, ()) for writer in examined.writers.get(operator.name, ())]
    elements = max(map(math.prod, (written, *read)))
    rows = math.prod(written[:-1])
    macs = examined.found.macs.get(operator.name, 0)
    return operator_seconds(operator.op_type, macs, elements, rows)


NOT_A_PRODUCT = "neither convolution, product, pool nor sum, nor fused behind one"
POOL = "only pools of images and of sequences without dilation are offloaded"
UNFUSED = (
    "only a relu, a clip from zero, a change of scale and a sum of two tensors of one shape can "
    "stand alone"
)
NONLINEAR = "needs more than the accelerator's min, max, add and shift"
NO_SCHEDULE = "no plain product of two matrices or two stacks of them"
OTHER_CONVOLUTION = (
    "only convolutions of images, sequences and volumes with constant weights are offloaded"
)
TRANSPOSED = (
    "transposed convolutions with dilation, or without constant weights, have no schedule here"
)
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
        ("numbers change their type where data come and go", (
            "QuantizeLinear", "DequantizeLinear",
        )),
        (NONLINEAR, (
            "Softmax", "LogSoftmax", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Gelu", "Erf",
            "Exp", "Elu", "LeakyRelu", "LRN", "LayerNormalization",
        )),
        ("no convolution directly before it to fold it into", (
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
    """The kinds of operators and why each stays, those that multiply most first; and what to do."""
    kinds: dict[tuple[str, str, str], list[OperatorReport]] = defaultdict(list)
    for operator in report.operators:
        kinds[operator.op_type, operator.reason, operator.next_step].append(operator)
    heaviest = sorted(
        kinds.values(), key=lambda same: (-sum(each.macs for each in same), -len(same))
    )
    more = f"; {len(heaviest) - SHOWN_KINDS} more kinds" if len(heaviest) > SHOWN_KINDS else ""
    return (
        f"nothing of '{report.model}' can be offloaded to {report.block_in}×{report.block_out} "
        f"blocks, so there is nothing to tune: {'; '.join(map(_kind, heaviest[:SHOWN_KINDS]))}"
        f"{more}. `tilewright inspect {report.model}` with the same options lists every operator; "
        "tune a model with convolutions or products"
    )


def _kind(same: list[OperatorReport]) -> str:
    first = same[0]
    names = ", ".join(f"'{each.name}'" for each in same[:SHOWN_NAMES])
    dots = ", …" if len(same) > SHOWN_NAMES else ""
    step = f" ({first.next_step})" if first.next_step else ""
    return f"{len(same)} {first.op_type} ({names}{dots}): {first.reason}{step}"
