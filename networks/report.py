"""What becomes of every operator of a model, before anything is tuned: plain data for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from networks.extract import Blocks, Decision, collect, decide, offloaded_macs
from networks.fused_calls import Partitioned
from networks.graph import Absorbed, Operator, Shape
from targets.files import Json
from targets.workload import Workload

Status = Literal["offloaded", "cpu", "unsupported"]


@dataclass(frozen=True)
class Examined:
    """All that was learned about a model, independent of any accelerator.

    `unsupported` maps an operator to (reason, next step); `readers` an operator to those that read
    its results; `shapes` an operator to the shape of its first result.
    """

    name: str
    inputs: Mapping[str, Shape]
    operators: tuple[Operator, ...]
    absorbed: Mapping[str, Absorbed]
    unsupported: Mapping[str, tuple[str, str]]
    readers: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, Shape]
    found: Partitioned


@dataclass(frozen=True)
class OperatorReport:
    """One operator. `macs` are those of whatever sums products; `waste` is the share of padded
    multiplications by zeros; `workload` is the text `targets.workload.parse_workload` reads."""

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
class ModelReport:
    """A model on an accelerator. `total_macs` count every operator that sums products, wherever it
    runs: convolutions of any kind, products of weights or activations, attention. Operators that
    cannot be imported are not in it."""

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

    def by_status(self, status: Status) -> list[OperatorReport]:
        """The operators that share a fate, in the model's order."""
        return [operator for operator in self.operators if operator.status == status]

    @property
    def offloaded_share(self) -> float:
        """Of all multiply-accumulates; 0 where there are none."""
        return self.offloaded_macs / max(self.total_macs, 1)

    def to_dict(self) -> dict[str, Json]:
        """Lists, numbers and strings only."""
        return asdict(self)


def build(examined: Examined, blocks: Blocks) -> ModelReport:
    """Decide every fused call and say what becomes of every operator."""
    decisions = [decide(call, blocks) for call in examined.found.fused_calls]
    reports = _operators(examined, decisions)
    return ModelReport(
        model=examined.name,
        inputs=dict(examined.inputs),
        block_in=blocks.block_in,
        block_out=blocks.block_out,
        batch=blocks.batch,
        quantised=any(call.data_quantisation for call in examined.found.fused_calls),
        operators=reports,
        workloads=tuple(
            WorkloadReport(w.id, str(w), epilogue_text(w), calls, w.macs, names)
            for w, calls, names in collect(decisions)
        ),
        total_macs=sum(examined.found.macs.values()),
        offloaded_macs=offloaded_macs(decisions),
    )


def epilogue_text(workload: Workload) -> str:
    """The epilogue as `targets.workload.parse_epilogue` reads it."""
    return ", ".join(str(op) for op in workload.epilogue)


def _operators(examined: Examined, decisions: list[Decision]) -> tuple[OperatorReport, ...]:
    reports: dict[str, OperatorReport] = {}
    for decision in decisions:
        reports.setdefault(decision.fused.node, _anchor(decision))
    for decision in decisions:
        for step in decision.fused.steps:
            reports.setdefault(step.node, _follower(step.node, decision))
    for operator in reversed(examined.operators):  # readers before what they read
        if operator.name not in reports and operator.name not in examined.absorbed:
            reports[operator.name] = _other(operator, examined, reports)
    for name, absorbed in examined.absorbed.items():
        reports[name] = _gone(name, absorbed, reports)
    return tuple(
        _named(reports[operator.name], operator, examined) for operator in examined.operators
    )


def _named(report: OperatorReport, operator: Operator, examined: Examined) -> OperatorReport:
    facts = {
        **asdict(report),
        "name": operator.name,
        "op_type": operator.op_type,
        "macs": examined.found.macs.get(operator.name, 0),
        "output_shape": examined.shapes.get(operator.name),
    }
    return OperatorReport(**facts)


def _anchor(decision: Decision) -> OperatorReport:
    workload = decision.workload
    return OperatorReport(
        name=decision.fused.node,
        op_type="",
        status="cpu" if workload is None else "offloaded",
        reason=decision.reason,
        next_step=decision.next_step,
        waste=round(decision.waste, 4),
        workload=None if workload is None else str(workload),
        workload_id=None if workload is None else workload.id,
    )


def _follower(name: str, decision: Decision) -> OperatorReport:
    anchor = decision.fused.node
    if decision.workload is None:
        return OperatorReport(name, "", "cpu", f"follows '{anchor}', which is left to the CPU")
    return OperatorReport(name, "", "offloaded", f"in the epilogue of '{anchor}'")


def _gone(name: str, absorbed: Absorbed, reports: Mapping[str, OperatorReport]) -> OperatorReport:
    if absorbed.into is None:
        return OperatorReport(name, "", "cpu", f"no work: {absorbed.note}")
    status = reports[absorbed.into].status if absorbed.into in reports else "cpu"
    return OperatorReport(name, "", status, f"{absorbed.note} ('{absorbed.into}')")


def _other(
    operator: Operator, examined: Examined, reports: Mapping[str, OperatorReport]
) -> OperatorReport:
    name = operator.name
    if name in examined.unsupported:
        return OperatorReport(name, "", "unsupported", *examined.unsupported[name])
    if name in examined.found.constant_nodes:
        return OperatorReport(name, "", "cpu", "no work: computed once, from weights alone")
    readers = examined.readers.get(name, ())
    int8_read = readers and all(
        reader in reports and reports[reader].status == "offloaded" for reader in readers
    )
    if operator.op_type == "DequantizeLinear" and int8_read:
        return OperatorReport(name, "", "offloaded", "the accelerator reads the int8 data itself")
    return OperatorReport(name, "", "cpu", CPU_REASONS.get(operator.op_type, NOT_A_PRODUCT))


NOT_A_PRODUCT = "neither convolution nor product, nor fused behind one"
POOL = "pooling: the accelerator's ALU has the operations, but no schedule for them exists here"
UNFUSED = "not directly behind an offloaded operator, or its input is also needed elsewhere"
NONLINEAR = "needs more than the accelerator's min, max, add and shift"
NO_SCHEDULE = "a product of two activations; the accelerator wants weights prepared beforehand"
OTHER_CONVOLUTION = "only two-dimensional convolutions with constant weights are offloaded"
NO_CONSTANT = "its second operand is no constant; the accelerator wants weights prepared beforehand"

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
        (UNFUSED, ("Add", "Relu", "Clip", "QuantizeLinear", "DequantizeLinear", "add",
            "relu", "hardtanh", "clamp")),
        (NONLINEAR, (
            "Softmax", "LogSoftmax", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Gelu", "Erf",
            "Exp", "Elu", "LeakyRelu", "LRN", "LayerNormalization",
        )),
        ("no convolution directly before it to fold it into", (
            "BatchNormalization", "_native_batch_norm_legit_no_training",
        )),
        (OTHER_CONVOLUTION, ("Conv", "convolution")),
        ("transposed convolutions have no schedule here", ("ConvTranspose",)),
        (NO_CONSTANT, ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "mm", "bmm", "addmm")),
        (NO_SCHEDULE, ("Einsum", "Attention", "MultiHeadAttention")),
    )
    for reason_of in operators
}  # fmt: skip
