"""Baseline and fallback schedules: the latency of a layer before any tuning.

The baseline of a workload is the schedule that a user of the stock stack gets without tuning. It is
TVM's published schedule (TopHub) if there is one for this hardware. Otherwise it is the schedule
with the lowest closed-form estimate among the schedules that the stock stack can run. Choosing it
needs no measurement; it is as strong as a rule without a simulator can be.

The fallback is the schedule that the stock compiler itself uses without a tuning log. AutoTVM then
takes the first value of every knob, which is the smallest tile in one thread. A TopHub schedule
counts as a tuning log.

The stock stack has no max-pool layers. For a max-pool layer, both the baseline and the fallback are
the schedule with the smallest tiles. The stock stack also cannot fuse a max-pool, a shortcut or an
average with a convolution. The baseline of such a workload is the schedule of our own space with
the lowest estimate.

The stock compiler's schedules cannot add an int8 residual to the accumulators; they add it as an
int32 tensor. The baseline of a layer with a residual therefore does the same, and its `source` says
so. It is the cost of the layer in the stock stack, and not that of a schedule in our own space.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.files import as_int, as_list, as_object, as_text, read_json
from tilewright.targets.epilogue import RESIDUALS, EpilogueOp
from tilewright.targets.vta.estimates import CYCLES, SHARES
from tilewright.targets.vta.estimates.schedule_estimate import estimator
from tilewright.targets.vta.estimates.template import estimate_template
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.geometry import alu_operations, composed_rows, tensor_operands
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import Workload

WIDE_RESIDUAL = " (int32 residual)"
"""Suffix of a baseline's source. It states that the schedule adds the residual as an int32
tensor."""

# The machine for which TopHub's schedules were tuned: block sizes (batch, input, output), and log2
# of the depths of the input, weight and accumulator scratchpads.
_STOCK_BLOCK = (1, 16, 16)
_STOCK_DEPTHS = (11, 10, 11)


SAMPLED = 1 << 16
"""Maximum number of schedules that are estimated to choose a baseline if the stock compiler has no
schedule."""


@dataclass(frozen=True)
class PublishedBaseline:
    """Baseline schedule of the template space, or of our own space if the template has none.

    Attributes:
        lowering: lowering of the workload, in the form in which the baseline runs it.
        values: knob values of the schedule, int64, shape (knobs,).
        source: `tophub`, `estimate` or `fallback`, followed by `WIDE_RESIDUAL` if the workload has
            an int8 residual.
    """

    lowering: Lowering
    values: NDArray[np.int64]
    source: str


def baseline_of(workload: Workload, spec: VtaSpec) -> PublishedBaseline:
    """Return the baseline schedule of a workload.

    Args:
        workload: the workload.
        spec: the machine.

    Raises:
        WorkloadError: no schedule compiles.
    """
    if workload.operator == "max_pool":
        return fallback_of(workload, spec)
    if _is_ours(workload):
        return _estimated_baseline(workload, spec)
    workload, form = _stock_form(workload)
    for stock in (True, False):
        lowering = Lowering.for_workload(workload, spec, "template", stock)
        published = _published_config(workload, spec) if stock else None
        if published is not None and lowering.program(published)[0] == 0:
            return PublishedBaseline(lowering, published, "tophub" + form)
        values = lowering.space.values(lowering.space.unravel(np.arange(lowering.space.size)))
        estimates = estimate_template(
            lowering.geometry, lowering.machine, len(workload.epilogue),
            tensor_operands(workload), values,
        )  # fmt: skip
        best = _first_that_lowers(lowering, values[estimates[:, CYCLES].argsort(kind="stable")])
        if best is not None:
            return PublishedBaseline(lowering, best, "estimate" + form)
    raise _no_schedule(workload, spec)


def fallback_of(workload: Workload, spec: VtaSpec) -> PublishedBaseline:
    """Return the schedule that the stock compiler uses without a tuning log.

    It takes the first value of every knob. If that schedule does not compile, the result is the
    compiling schedule with the smallest product of knob values.

    Args:
        workload: the workload.
        spec: the machine.

    Raises:
        WorkloadError: no schedule compiles.
    """
    if _is_ours(workload):
        return _smallest(workload, spec)
    workload, form = _stock_form(workload)
    for stock in (True, False):
        lowering = Lowering.for_workload(workload, spec, "template", stock)
        first = lowering.space.values(lowering.space.unravel(np.zeros(1, np.int64)))
        if lowering.counts(first)[0][0] == 0:
            return PublishedBaseline(lowering, first[0], "fallback" + form)
        values = lowering.space.values(lowering.space.unravel(np.arange(lowering.space.size)))
        least = _first_that_lowers(lowering, values[values.prod(axis=1).argsort(kind="stable")])
        if least is not None:
            return PublishedBaseline(lowering, least, "fallback" + form)
    raise _no_schedule(workload, spec)


def _is_ours(workload: Workload) -> bool:
    """Return whether the stock compiler cannot compute the whole workload in one program.

    Only our own schedule space can then compute it.
    """
    return bool(workload.patterns) or any(composed_rows(op) for op in workload.epilogue)


def _first_that_lowers(lowering: Lowering, values: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the first of several schedules that compiles.

    Compiling takes much longer than sorting the schedules, so they are compiled in batches of
    growing size until one compiles.

    Args:
        lowering: lowering of the workload.
        values: knob values in order of preference, shape (configs, knobs).

    Returns:
        Knob values, shape (knobs,), or None if no schedule compiles.
    """
    begin, count = 0, 64
    while begin < len(values):
        some = values[begin : begin + count]
        lowers = np.flatnonzero(lowering.counts(some)[0] == 0)
        if len(lowers):
            return some[lowers[0]]
        begin, count = begin + count, 2 * count
    return None


def _estimated_baseline(workload: Workload, spec: VtaSpec) -> PublishedBaseline:
    """Return the schedule with the lowest estimated latency among those that compile.

    If the space has more than `SAMPLED` schedules, only a random sample of that size is considered.
    """
    lowering = Lowering.for_workload(workload, spec, "extended")
    space = lowering.space
    flat = np.arange(space.size)
    if space.size > SAMPLED:
        flat = np.random.default_rng(0).choice(space.size, SAMPLED, replace=False)
    values = space.values(space.unravel(flat))
    estimates = estimator(workload, "extended")(
        lowering.geometry, lowering.machine, alu_operations(workload), tensor_operands(workload),
        values,
    )  # fmt: skip
    order = np.lexsort((estimates[:, CYCLES], (estimates[:, SHARES] > 1).any(axis=1)))
    best = _first_that_lowers(lowering, values[order])
    if best is None:
        raise _no_schedule(workload, spec)
    return PublishedBaseline(lowering, best, "estimate")


def _smallest(workload: Workload, spec: VtaSpec) -> PublishedBaseline:
    """Return the schedule with the smallest tiles, as the baseline of a max-pool layer.

    If several such schedules compile, the first one in knob order is returned.
    """
    lowering = Lowering.for_workload(workload, spec, "extended")
    knobs = lowering.space.knobs
    few = [[knob.values[0]] if knob.name.startswith("tile_") else knob.values for knob in knobs]
    values = np.array(list(product(*few)), dtype=np.int64)
    first = _first_that_lowers(lowering, values)
    if first is None:
        raise _no_schedule(workload, spec)
    return PublishedBaseline(lowering, first, "fallback")


def _stock_form(workload: Workload) -> tuple[Workload, str]:
    """Convert a workload to the form in which the stock compiler can run it.

    An int8 residual is replaced by an added int32 tensor.

    Returns:
        The workload, and the suffix of the baseline's source: `WIDE_RESIDUAL` if the workload was
        changed, else an empty string.
    """
    steps = [EpilogueOp("add") if op.kind in RESIDUALS else op for op in workload.epilogue]
    changed = tuple(steps) != workload.epilogue
    return workload.with_steps(tuple(steps)), WIDE_RESIDUAL * changed


def _no_schedule(workload: Workload, spec: VtaSpec) -> WorkloadError:
    return WorkloadError(
        f"{workload} has no schedule in the template space of '{spec.name}', because even "
        "the smallest tile does not fit; choose a target with larger scratchpads, or run "
        "the layer on the CPU"
    )


@cache
def _tophub() -> dict[str, tuple[int, ...]]:
    text = (resources.files("tilewright.targets.vta") / "tophub.json").read_text()
    schedules = map(as_object, as_list(as_object(read_json(text))["schedules"]))
    return {
        as_text(s["workload"]): tuple(map(as_int, as_object(s["knobs"]).values()))
        for s in schedules
    }


def _published_config(workload: Workload, spec: VtaSpec) -> NDArray[np.int64] | None:
    m = spec.machine
    block = (m.batch, m.block_in, m.block_out)
    depths = (m.log_inp_depth, m.log_wgt_depth, m.log_acc_depth)
    if block != _STOCK_BLOCK or depths != _STOCK_DEPTHS:
        return None
    knobs = _tophub().get(str(workload))
    return None if knobs is None else np.array(knobs, dtype=np.int64)
