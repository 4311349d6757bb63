"""Lowers whole batches of configs, compiled and on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.base import Ragged, Space
from tilewright.targets.vta.isa import Layout, layout_of
from tilewright.targets.vta.lowering.bias_lifting import lift_of, lifted_epilogue, lifted_geometry
from tilewright.targets.vta.lowering.canonical_configs import distinct, set_alike
from tilewright.targets.vta.lowering.codes import (
    EXTENDED,
    POOL,
    POOLED,
    SUMMED,
    TEMPLATE,
    UNCHECKED,
)
from tilewright.targets.vta.lowering.extended import extended_space, lower_extended
from tilewright.targets.vta.lowering.failures import OUT_OF_SPACE
from tilewright.targets.vta.lowering.fused_max_pool import lower_pooled
from tilewright.targets.vta.lowering.fused_shortcut import lower_summed
from tilewright.targets.vta.lowering.geometry import (
    EPILOGUE_IMMEDIATE,
    Geometry,
    beside_geometry,
    check_composed,
    check_residual,
    epilogue_steps,
    geometry_of,
)
from tilewright.targets.vta.lowering.max_pool import check_pool, lower_pool, pool_space
from tilewright.targets.vta.lowering.ml2tuner_space import (
    EVERY_GROUP,
    lower_unchecked,
    unchecked_space,
)
from tilewright.targets.vta.lowering.program_state import ProgramState, new_state, new_states
from tilewright.targets.vta.lowering.stall_features import count_waits
from tilewright.targets.vta.lowering.template import lower_template, template_space
from tilewright.targets.vta.njit_args import as_record, unowned
from tilewright.targets.vta.patterns.registry import patterns_of, pipeline_of
from tilewright.targets.vta.spec import Machine, VtaSpec
from tilewright.targets.workload import Workload

SpaceName = Literal["template", "extended", "unchecked"]
_CODES: dict[SpaceName, int] = {"template": TEMPLATE, "extended": EXTENDED, "unchecked": UNCHECKED}
_CHUNK = 64  # configs a thread takes at a time
SCRATCH = 1 << 15  # instructions: a longer program is written twice


@dataclass(frozen=True)
class Lowering:
    """A workload bound to a machine and a space: everything the compiled lowerings need."""

    workload: Workload
    spec: VtaSpec
    kind: SpaceName
    stock: bool
    machine: Machine
    layout: Layout
    geometry: Geometry
    epilogue: NDArray[np.int64]
    space: Space

    @classmethod
    def of(
        cls, workload: Workload, spec: VtaSpec, kind: SpaceName, stock: bool = False
    ) -> Lowering:
        """Raises `WorkloadError` for a workload this machine cannot hold in any schedule. Every
        space but the unchecked one offers a max-pool the same schedules."""
        geometry = geometry_of(workload, spec.machine, column=kind == "extended")
        epilogue = epilogue_steps(workload)
        if workload.operator == "max_pool":
            check_pool(workload)
        check_residual(workload, kind == "extended")
        check_composed(workload, kind == "extended")
        patterns, pipeline = patterns_of(workload), pipeline_of(workload)
        for pattern in patterns:
            pattern.check(workload, kind == "extended")
        if workload.operator == "max_pool":
            if kind == "unchecked":
                raise WorkloadError(
                    f"{workload}: the unchecked space has convolutions only; use another space"
                )
            space = pool_space(geometry, kind)
        elif kind == "template":
            space = template_space(geometry)
        elif kind == "extended":
            own_space = None if pipeline is None else pipeline.space
            space = (own_space or extended_space)(geometry)
            lift = lift_of(workload, spec.machine)
            geometry = lifted_geometry(geometry, lift)
            epilogue = lifted_epilogue(epilogue, lift, geometry.average_steps)
            for pattern in patterns:
                geometry, epilogue = pattern.lifted(workload, spec.machine, geometry, epilogue)
        else:
            space = unchecked_space()
            if (epilogue[:, 0] != EPILOGUE_IMMEDIATE).any():
                raise WorkloadError(
                    f"{workload}: the unchecked space has no bias or residual; use the extended "
                    "space"
                )
        return cls(
            workload, spec, kind, stock, spec.machine, layout_of(spec), geometry,
            epilogue, space,
        )  # fmt: skip

    @property
    def records(self) -> tuple[Geometry, Machine, Layout]:
        """Geometry, machine and layout as compiled code takes them fastest."""
        return as_record(self.geometry), as_record(self.machine), as_record(self.layout)

    @property
    def beside(self) -> Geometry | None:
        """The shortcut of a convolution by itself, in the memory that the two share."""
        return beside_geometry(self.workload, self.machine, self.geometry)

    @property
    def code(self) -> int:
        """The space, or what pools, pooled sums and shortcuts have in its place, as compiled code
        knows it."""
        if self.workload.operator == "max_pool":
            return POOL
        pipeline = pipeline_of(self.workload)
        own = None if pipeline is None else pipeline.code
        return _CODES[self.kind] if own is None else own

    def program(
        self, values: NDArray[np.int64]
    ) -> tuple[int, NDArray[np.uint64], NDArray[np.uint64], ProgramState]:
        """One config by knob *values*, (knobs,) → failure code, instructions (n, 2), micro-ops
        (m,), counts."""
        state = new_state()
        uops = np.zeros(1 << self.machine.log_uop_depth, np.uint64)
        size = 4096
        while True:
            out = np.zeros((size, 2), np.uint64)
            code = lower_one(
                self.code, *self.records, self.epilogue, values, self.stock, out, uops, state,
            )  # fmt: skip
            if code != OUT_OF_SPACE:
                break
            size = max(size * 4, int(state.instructions) + 64)
        instructions = out[: state.instructions]
        if code == 0:
            _, machine, layout = self.records
            count_waits(instructions, layout, machine, state)
        return code, instructions, uops[: state.uops], state

    def cut_program(
        self, values: NDArray[np.int64], groups: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The first groups of tiles of an unchecked program, knob *values* (3,): instructions
        (n, 2), the micro-op scratchpad's image (m,)."""
        state = new_state()
        uops = np.zeros(1 << self.machine.log_uop_depth, np.uint64)
        out = np.zeros((4096, 2), np.uint64)
        arguments = (*self.records, self.epilogue, values)
        if lower_unchecked(*arguments, out, uops, state, groups) == OUT_OF_SPACE:
            out = np.zeros((state.instructions, 2), np.uint64)
            lower_unchecked(*arguments, out, uops, state, groups)
        return out[: state.instructions], uops

    def distinct(self, values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of knob *values*, (n, knobs), that stand for all: (rows,), and which of them stands
        for each, (n,), with the same failure, program and counts."""
        if self.code != EXTENDED:
            return np.arange(len(values)), np.arange(len(values))
        alike = values.copy()
        set_alike(*self.records, self.epilogue, alike)
        return distinct(alike)

    def programs(
        self, values: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.void], Ragged, Ragged]:
        """Lower a batch, shape (n, knobs) → codes (n,), counts (n,), and a row a config
        of instructions, words (…, 2), and of micro-ops, words (…,)."""
        codes = np.zeros(len(values), np.int64)
        states = new_states(len(values))
        kept: dict[int, tuple[NDArray[np.uint64], NDArray[np.uint64]]] = {}

        def run(begin: int, end: int) -> None:
            kept[begin] = _lower_rows(
                self.code, *self.records, self.epilogue, values, self.stock, begin, end,
                codes, states, True,
            )  # fmt: skip

        over_chunks(len(values), run)
        chunks = [kept[begin] for begin in sorted(kept)]
        made = codes == 0
        return (
            codes,
            states,
            _ragged([insns for insns, _ in chunks], states["instructions"] * made),
            _ragged([uops for _, uops in chunks], states["uops"] * made),
        )

    def counts(
        self, values: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.void]]:  # fmt: skip
        """Lower a batch, shape (n, knobs), and keep only codes (n,) and counts (n,)."""
        codes = np.zeros(len(values), np.int64)
        states = new_states(len(values))

        def run(begin: int, end: int) -> None:
            _lower_rows(
                self.code, *self.records, self.epilogue, values, self.stock, begin, end,
                codes, states, False,
            )  # fmt: skip

        over_chunks(len(values), run)
        return codes, states


def over_chunks(rows: int, run: Callable[[int, int], None]) -> None:
    """Call `run(begin, end)` over chunks of rows on all cores; `run` must release the GIL."""
    if rows <= _CHUNK:  # a thread takes as long to start as some rows to lower
        run(0, rows)
        return
    begins = range(0, rows, _CHUNK)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, len(begins))) as pool:
        for done in [pool.submit(run, b, min(b + _CHUNK, rows)) for b in begins]:
            done.result()


def _ragged(chunks: list[NDArray[np.uint64]], lengths: NDArray[np.int64]) -> Ragged:
    """The rows of chunks that follow each other, by the length of each row, shape (n,)."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return Ragged(values, offsets)


@nb.njit(cache=True, nogil=True)
def lower_one(
    kind: int, geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64],
    values: NDArray[np.int64], stock: bool, out: NDArray[np.uint64], uops: NDArray[np.uint64],
    state: ProgramState,
) -> int:  # fmt: skip
    """Dispatch to the lowering of a space (or of pools, `Lowering.code`); `values` (knobs,),
    `epilogue` (steps, 3). Returns a failure code; fills `out` (instructions, 2), `uops`
    (micro-ops,), `state`."""
    if kind == TEMPLATE:
        return lower_template(geo, m, lay, epilogue, values, stock, out, uops, state)
    if kind == EXTENDED:
        return lower_extended(geo, m, lay, epilogue, values, out, uops, state)
    if kind == POOL:
        return lower_pool(geo, m, lay, epilogue, values, out, uops, state)
    if kind == POOLED:
        return lower_pooled(geo, m, lay, epilogue, values, out, uops, state)
    if kind == SUMMED:
        return lower_summed(geo, m, lay, epilogue, values, out, uops, state)
    return lower_unchecked(geo, m, lay, epilogue, values, out, uops, state, EVERY_GROUP)


@nb.njit(cache=True, nogil=True)
def lower_whole(
    kind: int, geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64],
    values: NDArray[np.int64], stock: bool, out: NDArray[np.uint64], uops: NDArray[np.uint64],
    state: ProgramState,
) -> tuple[int, NDArray[np.uint64]]:  # fmt: skip
    """Lower into `out` and count what the program waits for; shapes as in `lower_one`. Returns the
    failure code and `out`, or a larger array where that was too short."""
    while True:
        code = lower_one(
            kind, geo, m, lay, unowned(epilogue), unowned(values), stock, unowned(out),
            unowned(uops), unowned(state),
        )  # fmt: skip
        if code != OUT_OF_SPACE:
            break
        out = np.empty((state.instructions * 5 // 4, 2), np.uint64)
    if code == 0:
        count_waits(out[: state.instructions], lay, m, state)
    return code, out


@nb.njit(cache=True, nogil=True)
def _lower_rows(
    kind: int, geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64],
    values: NDArray[np.int64], stock: bool, begin: int, end: int, codes: NDArray[np.int64],
    states: NDArray[np.void], keep: bool,
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:  # fmt: skip
    """Lower rows of a batch. Returns the instructions and micro-ops of all of them, one after the
    other; none unless they are to be kept."""
    out = np.empty((SCRATCH, 2), np.uint64)
    uops = np.zeros(1 << m.log_uop_depth, np.uint64)
    insns, insn_count = np.empty((4096 if keep else 0, 2), np.uint64), 0
    kept_uops, uop_count = np.empty(256 if keep else 0, np.uint64), 0
    for r in range(begin, end):
        codes[r], out = lower_whole(
            kind, geo, m, lay, epilogue, values[r], stock, out, uops, states[r]
        )
        if codes[r] != 0 or not keep:
            continue
        more_insns, more_uops = (states[r].instructions, states[r].uops)
        if insn_count + more_insns > len(insns):
            grown = np.empty((2 * (insn_count + more_insns), 2), np.uint64)
            grown[:insn_count] = insns[:insn_count]
            insns = grown
        if uop_count + more_uops > len(kept_uops):
            grown_uops = np.empty(2 * (uop_count + more_uops), np.uint64)
            grown_uops[:uop_count] = kept_uops[:uop_count]
            kept_uops = grown_uops
        insns[insn_count : insn_count + more_insns] = out[:more_insns]
        kept_uops[uop_count : uop_count + more_uops] = uops[:more_uops]
        insn_count += more_insns
        uop_count += more_uops
    return insns[:insn_count].copy(), kept_uops[:uop_count].copy()
