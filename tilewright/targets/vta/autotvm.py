"""Exports schedules of the template space as log records of AutoTVM, the tuner of TVM 0.8 to 0.14.

A record contains the packed tensors and the attributes of the operator, but not its epilogue. A
knob that splits a loop is written as [-1, inner extent], where -1 stands for the number of outer
iterations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from tilewright.core.errors import WorkloadError
from tilewright.core.files import Json
from tilewright.targets.capabilities import ExportedText, NamedSchedule
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.invalid_configs import FAILURES
from tilewright.targets.vta.lowering.template import TEMPLATE_KNOBS
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import Workload

SPACES = ("template", "stock")
BOARDS = {"vta-pynq": "pynq", "vta-de10": "de10nano"}
"""Values of the key `TARGET` in the configuration of the stock VTA, by the name of the
specification. All other specifications use the stock simulator."""
# Version of AutoTVM's log format, and the last TVM release with the templates of the VTA.
LOG_VERSION, TVM_VERSION = 0.2, "0.14.0"
_DENSE_KNOBS = ("tile_b", "tile_ci", "tile_co", "oc_nthread")


def tuning_log(schedules: Sequence[NamedSchedule], spec: VtaSpec, written: float) -> ExportedText:
    """Export tuned schedules as an AutoTVM log.

    Schedules that stock TVM does not have or cannot build are left out.

    Args:
        schedules: the tuned schedules, with their workloads.
        spec: the machine.
        written: Unix timestamp of the records, in seconds.

    Returns:
        The log with one line per exported schedule, and the reasons for the schedules that were
        left out.
    """
    lines, left_out = [], []
    for schedule in schedules:
        try:
            lines.append(
                record(
                    schedule.workload,
                    spec,
                    schedule.space,
                    schedule.knobs,
                    schedule.seconds,
                    written,
                )
            )
        except WorkloadError as error:
            left_out.append(str(error))
    return ExportedText("".join(f"{line}\n" for line in lines), len(lines), tuple(left_out))


def record(
    workload: Workload,
    spec: VtaSpec,
    space: str,
    knobs: Mapping[str, int],
    seconds: float,
    written: float,
) -> str:
    """Format a schedule as one line of an AutoTVM log.

    Args:
        workload: the workload.
        spec: the machine.
        space: name of the schedule space.
        knobs: knob values of the schedule, by name.
        seconds: measured latency in seconds.
        written: Unix timestamp of the measurement, in seconds.

    Returns:
        The record as JSON text, without a line break.

    Raises:
        WorkloadError: the stock compiler does not have the schedule, or cannot build it.
    """
    if space not in SPACES:
        _refuse(
            workload, f"its schedule belongs to the space '{space}', which stock TVM does not have"
        )
    lowering = _stock_lowering(workload, spec)
    _check_builds(lowering, knobs)
    geometry = lowering.geometry
    arguments = _conv2d(geometry, spec) if workload.operator == "conv2d" else _dense(geometry, spec)
    document: dict[str, Json] = {
        "input": [target_text(spec), f"{workload.operator}_packed.vta", arguments, {}],
        "config": _config(lowering, knobs),
        "result": [[seconds], 0, seconds, written],
        "version": LOG_VERSION,
        "tvm_version": TVM_VERSION,
    }
    return json.dumps(document)


def target_text(spec: VtaSpec) -> str:
    """Return the target string of a stock TVM that is configured for the given machine.

    The field `model` of the string names the board and the bitstream.
    """
    sizes = (spec.log_uop_buff_size, spec.log_inp_buff_size, spec.log_wgt_buff_size,
             spec.log_acc_buff_size)  # fmt: skip
    widths = (spec.log_inp_width, spec.log_wgt_width, spec.log_acc_width)
    types = "i{}w{}a{}".format(*(1 << width for width in widths))
    blocks = f"{1 << spec.log_batch}x{1 << spec.log_block_in}"
    model = "_".join([BOARDS.get(spec.name, "sim"), blocks, types, *map(str, sizes)])
    return f"ext_dev -keys=vta,cpu -device=vta -model={model}"


def _stock_lowering(workload: Workload, spec: VtaSpec) -> Lowering:
    """Create the lowering of a workload for the template space of the stock compiler, TVM.

    Raises:
        WorkloadError: stock TVM has no template for the workload or the machine.
    """
    if spec.log_block_in != spec.log_block_out:
        _refuse(
            workload,
            "stock TVM has a single LOG_BLOCK, but the blocks of this machine are not square",
        )
    if workload.operator not in ("conv2d", "dense") or workload.groups != 1:
        _refuse(workload, "stock TVM's templates only support plain convolutions and products")
    if (workload.dilation_h, workload.dilation_w) != (1, 1):
        _refuse(workload, "stock TVM's template does not support dilation")
    return Lowering.for_workload(workload, spec, "template", stock=True)


def _check_builds(lowering: Lowering, knobs: Mapping[str, int]) -> None:
    """Check that stock TVM can build a schedule.

    Args:
        lowering: lowering of the workload in the stock compiler's template space.
        knobs: knob values by knob name.

    Raises:
        WorkloadError: the knobs are not those of the template, or the schedule does not build.
    """
    space, workload = lowering.space, lowering.workload
    values = [knobs.get(knob.name, 0) for knob in space.knobs]
    if any(
        value not in knob.values for knob, value in zip(space.knobs, values, strict=True)
    ) or len(knobs) != len(values):
        _refuse(workload, f"its knobs {dict(knobs)} do not match its template")
    codes, _ = lowering.counts(np.array([values], np.int64))
    if codes[0]:
        _refuse(workload, f"stock TVM cannot build its schedule ({FAILURES[codes[0]].reason})")
    if workload.operator == "dense" and (knobs["tile_co"], knobs["oc_nthread"]) != (1, 1):
        _refuse(workload, "stock TVM's dense template only builds with tile_co=1 and oc_nthread=1")


def _conv2d(geo: Geometry, spec: VtaSpec) -> list[Json]:
    batch, block = 1 << spec.log_batch, 1 << spec.log_block_in
    pads = [geo.pad_top, geo.pad_left, geo.pad_bottom, geo.pad_right]
    return [
        _tensor([geo.batches, geo.ci, geo.h, geo.w, batch, block], spec.log_inp_width),
        _tensor([geo.co, geo.ci, geo.kh, geo.kw, block, block], spec.log_wgt_width),
        [geo.sh, geo.sw], pads, [geo.dh, geo.dw], f"NCHW{batch}n{block}c",
        f"int{1 << spec.log_acc_width}",
    ]  # fmt: skip


def _dense(geo: Geometry, spec: VtaSpec) -> list[Json]:
    """Return the arguments of the dense operator for an AutoTVM log record.

    The third argument, the bias, is None, because the bias belongs to the epilogue here.

    Args:
        geo: geometry of the workload.
        spec: the machine.

    Returns:
        Data, weights, bias and output type, as JSON values.
    """
    batch, block = 1 << spec.log_batch, 1 << spec.log_block_in
    return [
        _tensor([geo.batches, geo.ci, batch, block], spec.log_inp_width),
        _tensor([geo.co, geo.ci, block, block], spec.log_wgt_width),
        None,
        f"int{1 << spec.log_acc_width}",
    ]


def _tensor(shape: list[int], log_width: int) -> list[Json]:
    return ["TENSOR", list(shape), f"int{1 << log_width}"]


def _config(lowering: Lowering, knobs: Mapping[str, int]) -> dict[str, Json]:
    """Return the knob values of a schedule for an AutoTVM log record.

    The stock dense template has a knob `tile_b` that is missing in our dense template. Both
    templates process one row at a time, so the knob is written as 1.

    Args:
        lowering: lowering of the workload in the stock compiler's template space.
        knobs: knob values, by name.
    """
    dense = lowering.workload.operator == "dense"
    values = dict(knobs) | ({"tile_b": 1} if dense else {})
    knob_values = {knob.name: knob.values for knob in lowering.space.knobs}
    entity: list[Json] = []
    index, sizes = 0, [1]
    for name in _DENSE_KNOBS if dense else TEMPLATE_KNOBS:
        value, threads = values[name], name.endswith("_nthread")
        entity.append([name, "ot", value] if threads else [name, "sp", [-1, value]])
        index += knob_values[name].index(value) * math.prod(sizes)
        sizes.append(len(knob_values[name]))
    return {"index": index, "code_hash": None, "entity": entity}


def _refuse(workload: Workload, why: str) -> NoReturn:
    raise WorkloadError(f"{workload}: {why}")
